//! Ids of messages: which rule applies, and golden ids (each also computed with Python's `uuid.uuid5`).

use uuid::Uuid;
use waybill_event::{Header, Headers, MessageId, Origin, headers, id::NAMESPACE};

const ORIGIN: Origin<'static> =
    Origin { topic: "orders.v1", partition: 3, offset: 42, timestamp_ms: Some(1_796_000_000_123) };
const SOME: &str = "01900000-0000-7000-8000-000000000001";

fn identify(given: &[(&str, &str)]) -> String {
    let headers: Headers = given.iter().map(|(name, value)| Header::new(*name, *value)).collect();
    MessageId::identify(&headers, ORIGIN).to_string()
}

#[test]
fn the_namespace_is_derived_and_fixed() {
    assert_eq!(NAMESPACE, Uuid::new_v5(&Uuid::NAMESPACE_DNS, b"waybill.message"));
    assert_eq!(NAMESPACE.to_string(), "5ff6ac3c-3b11-53ab-b33f-de8991487587");
}

#[test]
fn a_uuid_is_the_id_itself_in_any_text_form() {
    let simple = SOME.replace('-', "");
    let upper = SOME.to_uppercase();
    for text in [SOME, &simple, &upper, &format!("urn:uuid:{SOME}")] {
        assert_eq!(identify(&[("ce_id", text)]), SOME);
    }
    assert_eq!(identify(&[("CE_ID", SOME), ("ce_source", "/x")]), SOME);
}

#[test]
fn debeziums_id_is_read_only_where_ce_id_is_missing() {
    assert_eq!(identify(&[("id", SOME)]), SOME);
    assert_eq!(identify(&[("ce_id", ""), ("id", SOME)]), SOME);
    assert_ne!(identify(&[("ce_id", "7"), ("id", SOME)]), SOME);
    let null: Headers = [Header::null("ce_id"), Header::new("id", SOME)].into_iter().collect();
    assert_eq!(MessageId::identify(&null, ORIGIN).to_string(), SOME);
}

#[test]
fn golden_ids() {
    for (given, golden) in [
        (&[("ce_source", "/shop"), ("ce_id", "4711")][..], "0c238354-9b03-5ace-9754-604dbf5aee77"),
        (&[("ce_source", "/shop"), ("id", "4711")], "c77b3d11-f0b4-5d6a-a850-2ab3f22a116a"),
        (&[("ce_id", "4711")], "458b59fc-d9ef-5084-a28e-1043e0401dd4"),
        (&[], "c77b3d11-f0b4-5d6a-a850-2ab3f22a116a"),
        (&[("ce_source", "/shop")], "c77b3d11-f0b4-5d6a-a850-2ab3f22a116a"),
        (&[("id", "00000000-0000-0000-0000-000000000000")], "c77b3d11-f0b4-5d6a-a850-2ab3f22a116a"),
        // The nil and max UUIDs are what a broken producer sends with every message.
        (
            &[("ce_id", "00000000-0000-0000-0000-000000000000"), ("ce_source", "/shop")],
            "c77b3d11-f0b4-5d6a-a850-2ab3f22a116a",
        ),
        (&[("ce_id", "ffffffff-ffff-ffff-ffff-ffffffffffff")], "c77b3d11-f0b4-5d6a-a850-2ab3f22a116a"),
    ] {
        assert_eq!(identify(given), golden, "{given:?}");
    }
    let no_time = MessageId::identify(&Headers::new(), Origin { timestamp_ms: None, ..ORIGIN });
    assert_eq!(no_time.to_string(), "d1549bc8-f0b4-573a-b5a1-f86be3e70076");
}

#[test]
fn source_and_id_do_not_run_into_each_other() {
    let ids = [("/a", "bc"), ("/ab", "c"), ("/a\0b", "c"), ("/a", "\0bc")]
        .map(|(source, id)| identify(&[("ce_source", source), ("ce_id", id)]));
    for (at, id) in ids.iter().enumerate() {
        assert!(!ids[..at].contains(id));
    }
}

#[test]
fn an_id_that_is_not_text_is_still_an_id() {
    let make = |id: Vec<u8>| {
        let headers: Headers =
            [Header::new("ce_id", id), Header::new("ce_source", "/x")].into_iter().collect();
        MessageId::identify(&headers, ORIGIN)
    };
    assert_eq!(make(vec![0xff, 1]), make(vec![0xff, 1]));
    assert_ne!(make(vec![0xff, 1]), make(vec![0xff, 2]));
}

#[test]
fn later_hops_see_the_first_origin() {
    let retry = Origin { topic: "orders.v1.point.retry.1s", partition: 0, offset: 7, timestamp_ms: Some(1) };
    let mut hop = Headers::new();
    for given in [None, Some("4711")] {
        if let Some(id) = given {
            hop.push(headers::CE_ID, id);
        }
        let first = MessageId::identify(&hop, ORIGIN);
        assert_ne!(MessageId::identify(&hop, retry), first);
        hop.set(headers::ORIGIN_TOPIC, ORIGIN.topic);
        hop.set(headers::ORIGIN_PARTITION, "3");
        hop.set(headers::ORIGIN_OFFSET, "42");
        hop.set(headers::ORIGIN_TIMESTAMP, "1796000000123");
        assert_eq!(MessageId::identify(&hop, retry), first);
        hop.remove(headers::ORIGIN_OFFSET);
        assert_ne!(MessageId::identify(&hop, retry), first, "half an origin is none");
        hop = Headers::new();
    }
}

#[test]
fn a_first_origin_without_timestamp_does_not_borrow_the_hops() {
    let mut hop = Headers::new();
    hop.set(headers::ORIGIN_TOPIC, "orders.v1");
    hop.set(headers::ORIGIN_PARTITION, "3");
    hop.set(headers::ORIGIN_OFFSET, "42");
    let first = MessageId::identify(&Headers::new(), Origin { timestamp_ms: None, ..ORIGIN });
    assert_eq!(MessageId::identify(&hop, Origin { topic: "x", ..ORIGIN }), first);
}

#[test]
fn new_ids_are_ordered_and_know_their_time() {
    let before = chrono::Utc::now().timestamp_millis();
    let ids: Vec<_> = (0..1000).map(|_| MessageId::new()).collect();
    assert!(ids.is_sorted());
    let made = ids[0].time().unwrap().timestamp_millis();
    assert!(made >= before && made <= chrono::Utc::now().timestamp_millis());
    let derived = MessageId::identify(&Headers::new(), ORIGIN);
    assert_eq!(derived.time(), None);
    assert_eq!(derived.to_string().parse::<MessageId>().unwrap(), derived);
    assert_eq!(MessageId::from(derived.as_uuid()), derived);
}
