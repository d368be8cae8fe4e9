//! Headers as Kafka has them: ordered, repeated, null or empty.

use waybill_event::{Header, Headers, headers};

fn sample() -> Headers {
    [
        Header::new("a", "1"),
        Header::new("b", "x"),
        Header::new("A", "2"),
        Header::null("a"),
        Header::new("c", ""),
    ]
    .into_iter()
    .collect()
}

#[test]
fn last_value_wins_without_regard_to_case_and_null_is_passed_over() {
    assert_eq!(sample().get("a"), Some(&b"2"[..]));
    assert_eq!(sample().text("B"), Some("x"));
}

#[test]
fn null_is_not_empty() {
    assert_eq!(sample().get("c"), Some(&b""[..]));
    let only_null: Headers = [Header::null("n")].into_iter().collect();
    assert_eq!(only_null.get("n"), None);
    assert_eq!(only_null.len(), 1);
}

#[test]
fn a_value_that_is_not_text_hides_earlier_ones() {
    let mut headers = sample();
    headers.push("b", vec![0xff]);
    assert_eq!(headers.text("b"), None);
    assert_eq!(headers.get("b"), Some(&[0xff][..]));
}

#[test]
fn set_leaves_one_at_the_first_place_and_the_rest_untouched() {
    let mut headers = sample();
    headers.set("A", "new");
    let names: Vec<_> = headers.iter().map(|h| (h.name.as_str(), h.value.as_deref())).collect();
    assert_eq!(names, [("A", Some(&b"new"[..])), ("b", Some(b"x")), ("c", Some(b""))]);
}

#[test]
fn set_in_the_middle_and_at_the_end() {
    let mut headers = sample();
    headers.set("b", "y");
    headers.set("z", "end");
    assert_eq!(headers.len(), 6);
    assert_eq!(headers.iter().nth(1), Some(&Header::new("b", "y")));
    assert_eq!(headers.iter().last(), Some(&Header::new("z", "end")));
}

#[test]
fn setting_again_and_again_does_not_grow() {
    let mut grown = sample();
    for attempt in 0..10 {
        grown.set(headers::ATTEMPT, attempt.to_string());
    }
    assert_eq!(grown.len(), 6);
    assert_eq!(grown.text(headers::ATTEMPT), Some("9"));
}

#[test]
fn remove_takes_every_case_and_null() {
    let mut headers = sample();
    headers.remove("a");
    assert_eq!(headers.iter().map(|h| h.name.as_str()).collect::<Vec<_>>(), ["b", "c"]);
}
