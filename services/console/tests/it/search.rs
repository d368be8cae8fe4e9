//! Finding letters.

use chrono::{TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;
use waybill_testkit::eventually;

use crate::fixture::{DLT, Dead, Fixture};

fn ids(page: &Value) -> Vec<Uuid> {
    page["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| crate::fixture::id(&item["message_id"]))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_filter_narrows_and_together_they_all_hold() {
    let fixture = Fixture::new().await;
    fixture.topics.add("orders.v1.other.dlt", 1, &[]).await;
    let console = fixture.console().await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let one = Dead { trace_id: Some(trace.to_owned()), ..Dead::new("k1") };
    let two = Dead { code: "timeout", class: "transient", attempt: 5, ..Dead::new("k1") };
    let three = Dead { group: "other", event_type: "waybill.order.cancelled", ..Dead::new("k 3&=") };
    for dead in [&one, &two, &three] {
        dead.produce(&fixture.topics).await;
    }
    console.letters(3).await;
    let (early, late) = (Utc::now() - TimeDelta::hours(1), Utc::now() + TimeDelta::hours(1));
    let time = |at: chrono::DateTime<Utc>| at.format("%Y-%m-%dT%H:%M:%SZ").to_string();
    for (query, expected) in [
        (format!("topic={DLT}"), vec![&one, &two]),
        (format!("topic={}", fixture.topics.name(DLT)), vec![&one, &two]),
        ("topic=orders.v1".to_owned(), vec![&one, &two, &three]),
        ("group=other".to_owned(), vec![&three]),
        ("key=k1".to_owned(), vec![&one, &two]),
        ("key=k%203%26%3D".to_owned(), vec![&three]),
        (format!("message_id={}", two.message_id), vec![&two]),
        (format!("trace_id={trace}"), vec![&one]),
        ("error_code=timeout".to_owned(), vec![&two]),
        ("error_class=permanent".to_owned(), vec![&one, &three]),
        ("event_type=waybill.order.cancelled".to_owned(), vec![&three]),
        ("state=open".to_owned(), vec![&one, &two, &three]),
        ("state=resolved,archived".to_owned(), vec![]),
        (format!("since={}", time(late)), vec![]),
        (format!("since={}&until={}", time(early), time(late)), vec![&one, &two, &three]),
        ("min_attempts=2".to_owned(), vec![&two]),
        ("max_attempts=1&key=k1".to_owned(), vec![&one]),
        ("key=k1&error_code=timeout&group=other".to_owned(), vec![]),
    ] {
        let mut found = ids(&console.get(&format!("/v1/dlt/items?{query}")).await);
        let mut expected: Vec<_> = expected.into_iter().map(|dead| dead.message_id).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{query}");
    }
    for (query, status) in [
        ("topic=orders.v9", 422),
        ("group=nobody", 422),
        ("trace_id=x", 400),
        ("state=closed", 400),
        ("since=yesterday", 400),
        ("limit=501", 400),
        ("cursor=x", 400),
        ("colour=red", 400),
        ("key=a&key=b", 400),
    ] {
        let path = format!("/v1/dlt/items?{query}");
        let (answer, _) = console.ask_as(&console.token, Method::GET, &path, None).await;
        assert_eq!(answer.as_u16(), status, "{query}");
    }
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_go_on_where_the_last_one_ended() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let mut expected = Vec::new();
    for n in 0..7 {
        let dead = Dead::new(&format!("k{n}"));
        dead.produce(&fixture.topics).await;
        expected.push(dead.message_id);
    }
    console.letters(7).await;
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = console.get(&format!("/v1/dlt/items?limit=3{cursor}")).await;
        found.extend(ids(&page));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found.len(), 7);
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_leave_the_text_out_and_topics_say_when_retention_deletes() {
    let fixture = Fixture::new().await;
    fixture.topics.add("orders.v1.empty.dlt", 1, &[("retention.ms", "3600000")]).await;
    fixture.topics.add("orders.v1.short.dlt", 1, &[("retention.ms", "7200000")]).await;
    let console = fixture.console().await;
    // Each has its own text, with the message's id in it.
    for n in 0..4 {
        Dead { group: "short", ..Dead::new(&format!("k{n}")) }.produce(&fixture.topics).await;
    }
    Dead { group: "short", code: "timeout", ..Dead::new("k") }.produce(&fixture.topics).await;
    console.letters(5).await;
    let groups = console.get("/v1/dlt/groups").await;
    let groups = groups["groups"].as_array().expect("groups");
    let counts: Vec<_> = groups.iter().map(|group| (&group["error_code"], &group["unsettled"])).collect();
    assert_eq!(counts, [(&json!("unknown_customer"), &json!(4)), (&json!("timeout"), &json!(1))]);
    assert_eq!(groups[0]["hours"][0]["arrived"], 4);
    let topics = eventually(async || {
        let topics = console.get("/v1/dlt/topics").await;
        let topics = topics["topics"].as_array().cloned().unwrap_or_default();
        let known = topics.len() == 3 && topics.iter().all(|topic| topic["partitions"].is_number());
        if known { Ok(topics) } else { Err(topics) }
    })
    .await;
    let short = &topics[0];
    assert_eq!((&short["unsettled"], &short["retention_s"]), (&json!(5), &json!(7200)));
    let left = short["deletes_in_s"].as_i64().expect("seconds");
    assert!((7000..=7200).contains(&left), "{left}");
    assert_eq!((&short["arrived_last_hour"], &short["newest_error_code"]), (&json!(5), &json!("timeout")));
    let empty = topics.iter().find(|topic| topic["topic"] == *fixture.topics.name("orders.v1.empty.dlt"));
    assert_eq!(empty.expect("it is listed")["unsettled"], 0);
    // Past its retention a letter is gone from the index too.
    sqlx::query("update console.item set dead_at = dead_at - interval '3 hours' where key = 'k'")
        .execute(&fixture.database.pool)
        .await
        .expect("older");
    console.stop().await;
    let console = fixture.console_with(&[("JOBS", "purge-console")]).await;
    console.letters(4).await;
    console.stop().await;
}

#[tokio::test]
async fn the_description_has_every_route_and_every_schema() {
    let description = waybill_console::openapi::description();
    for (path, method) in [
        ("/v1/dlt/topics", "get"),
        ("/v1/dlt/groups", "get"),
        ("/v1/dlt/items", "get"),
        ("/v1/dlt/items/{id}", "get"),
        ("/v1/dlt/loops", "get"),
        ("/v1/dlt/export", "get"),
        ("/v1/dlt/plans", "post"),
        ("/v1/dlt/plans/{id}", "get"),
        ("/v1/dlt/replays", "post"),
        ("/v1/dlt/replays/{id}", "get"),
        ("/v1/dlt/replays/{id}/cancel", "post"),
        ("/v1/dlt/archive", "post"),
        ("/v1/dlt/restore", "post"),
        ("/v1/keys", "get"),
        ("/v1/keys/release", "post"),
        ("/v1/consumers", "get"),
        ("/v1/consumers/resume", "post"),
        ("/v1/tasks", "get"),
        ("/v1/tasks/{id}/{verb}", "post"),
        ("/v1/audit", "get"),
        ("/v1/audit/{id}", "get"),
    ] {
        assert!(description["paths"][path][method].is_object(), "{method} {path}");
    }
    let text = description.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(description["components"]["schemas"][name].is_object(), "{name} is missing");
    }
}
