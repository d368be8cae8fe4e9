//! What is on the topics is in the index, once, whatever is in it.

use serde_json::{Value, json};
use uuid::Uuid;
use waybill_testkit::eventually;

use crate::consumer::say;
use crate::fixture::{DLT, Dead, Fixture, id};
use crate::wire::produce_with_header_name;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_is_shown_with_everything_it_says() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let foreign: Vec<(String, Option<Vec<u8>>)> = [
        ("a", Some(&b"1"[..])),
        ("a", Some(b"2")),
        ("b", None),
        ("", Some(b"")),
        ("bytes", Some(&[0xff, 0])),
    ]
    .map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)))
    .into();
    let dead =
        Dead { foreign, trace_id: Some("4bf92f3577b34da6a3ce929d0e0e4736".into()), ..Dead::new("k").at(42) };
    dead.produce(&fixture.topics).await;
    let item = console.letter(&dead).await;
    assert_eq!(
        (&item["state"], &item["key"], &item["origin_offset"]),
        (&json!("open"), &json!("k"), &json!(42))
    );
    let shown = console.get(&format!("/v1/dlt/items/{}", id(&item["item_id"]))).await;
    let first: Vec<Value> = shown["headers"].as_array().expect("headers")[..5].to_vec();
    let expected = [
        json!({"name": "a", "value": "1", "encoding": "utf8"}),
        json!({"name": "a", "value": "2", "encoding": "utf8"}),
        json!({"name": "b", "value": null, "encoding": "null"}),
        json!({"name": "", "value": "", "encoding": "utf8"}),
        json!({"name": "bytes", "value": "/wA=", "encoding": "base64"}),
    ];
    assert_eq!(first, expected);
    assert_eq!(shown["payload"]["decoded"]["status"], "CONFIRMED");
    assert_eq!(shown["history"][0]["error_message"], format!("no account for message {}", dead.message_id));
    assert_eq!(shown["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_stops_nothing_and_null_is_not_empty() {
    let fixture = Fixture::new().await;
    produce_with_header_name(&fixture.topics, DLT, &[0xff, 0xfe], b"x").await;
    fixture.topics.produce_raw(DLT, None, None, &[]).await;
    fixture.topics.produce_raw(DLT, Some(b""), Some(b""), &[("waybill-error-code", Some(b"a\0b"))]).await;
    fixture
        .topics
        .produce_raw(DLT, Some(&[0, 0xff]), Some(&[0xc3, 0x01]), &[("waybill-attempt", Some(b"x"))])
        .await;
    Dead::new("good").produce(&fixture.topics).await;
    let console = fixture.console().await;
    let items = console.letters(5).await;
    let by = |pick: &dyn Fn(&Value) -> bool| items.iter().find(|item| pick(item)).expect("an item").clone();
    let null = by(&|item| item["key"].is_null() && item["value_bytes"].is_null());
    let empty = by(&|item| item["key"] == "");
    assert_eq!((&empty["value_bytes"], &empty["error_code"]), (&json!(0), &json!("a b")));
    assert!(items.iter().any(|item| item["key"] == "base64:AP8="));
    for (item, kind) in [(null, "null"), (empty, "empty")] {
        let shown = console.get(&format!("/v1/dlt/items/{}", id(&item["item_id"]))).await;
        assert_eq!(shown["payload"]["kind"], kind);
    }
    let unreadable = by(&|item| item["value_bytes"] == 1);
    let shown = console.get(&format!("/v1/dlt/items/{}", id(&unreadable["item_id"]))).await;
    assert_eq!(shown["headers"][0]["encoding"], "unreadable");
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_delivered_again_changes_nothing() {
    let fixture = Fixture::new().await;
    let dead = Dead::new("k");
    dead.produce(&fixture.topics).await;
    let console = fixture.console().await;
    let first = console.letter(&dead).await;
    console.stop().await;
    // A group whose offsets are gone reads everything again.
    let mut config = rdkafka::ClientConfig::new();
    config
        .set("bootstrap.servers", &fixture.topics.bootstrap)
        .set("group.id", fixture.topics.name("console"));
    let group: rdkafka::consumer::BaseConsumer = config.create().expect("consumer");
    let mut list = rdkafka::TopicPartitionList::new();
    for partition in 0..2 {
        list.add_partition_offset(&fixture.topics.name(DLT), partition, rdkafka::Offset::Offset(0))
            .expect("offset");
    }
    rdkafka::consumer::Consumer::commit(&group, &list, rdkafka::consumer::CommitMode::Sync).expect("commits");
    let console = fixture.console().await;
    Dead::new("later").produce(&fixture.topics).await;
    console.letters(2).await;
    assert_eq!(console.letter(&dead).await, first);
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn springs_letters_are_read_and_a_topic_that_comes_later_is_found() {
    let fixture = Fixture::new().await;
    let prefix = fixture.topics.prefix.replace('.', "\\.");
    let console = fixture.console_with(&[("CONSOLE_DLT_PATTERNS", &format!("^{prefix}.*-dlt$"))]).await;
    fixture.topics.add("billing-dlt", 1, &[]).await;
    let (partition, offset, time) =
        (3_i32.to_be_bytes(), 77_i64.to_be_bytes(), 1_790_000_000_000_i64.to_be_bytes());
    fixture
        .topics
        .produce_raw(
            "billing-dlt",
            Some(b"k"),
            Some(b"{}"),
            &[
                ("kafka_dlt-original-topic", Some(b"billing")),
                ("kafka_dlt-original-partition", Some(&partition)),
                ("kafka_dlt-original-offset", Some(&offset)),
                ("kafka_dlt-original-timestamp", Some(&time)),
                ("kafka_dlt-original-consumer-group", Some(b"billing-service")),
                ("kafka_dlt-exception-fqcn", Some(b"x.Wrapper")),
                ("kafka_dlt-exception-cause-fqcn", Some(b"java.lang.IllegalStateException")),
            ],
        )
        .await;
    let item = console.letters(1).await.remove(0);
    assert_eq!(
        (&item["source_topic"], &item["consumer_group"]),
        (&json!("billing"), &json!("billing-service"))
    );
    assert_eq!((&item["origin_partition"], &item["origin_offset"]), (&json!(3), &json!(77)));
    assert_eq!(item["error_code"], "java.lang.IllegalStateException");
    let shown = console.get(&format!("/v1/dlt/items/{}", id(&item["item_id"]))).await;
    assert_eq!(
        (&shown["headers"][1]["encoding"], &shown["headers"][1]["number"]),
        (&json!("base64"), &json!(3))
    );
    assert_eq!(shown["history"][0]["dialect"], "spring");
    // Nobody of ours reads its replays.
    let plan = console.plan(&json!({"all": true})).await;
    assert_eq!(plan["targets"][0]["skipped"], json!({"no_target": 1}));
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_word_that_comes_before_its_letter_or_twice_counts_by_its_rank() {
    let fixture = Fixture::new().await;
    let (dead, run) = (Dead::new("k"), Uuid::now_v7());
    say(&fixture.topics, dead.message_id, run, "already_processed").await;
    say(&fixture.topics, dead.message_id, run, "resolved").await;
    say(&fixture.topics, dead.message_id, run, "already_processed").await;
    fixture.topics.produce_raw(crate::fixture::OUTCOMES, None, Some(b"no outcome"), &[]).await;
    let console = fixture.console().await;
    eventually(async || {
        let words: i64 =
            sqlx::query_scalar("select count(*) from console.outcome where outcome = 'resolved'")
                .fetch_one(&fixture.database.pool)
                .await
                .expect("count");
        if words == 1 { Ok(()) } else { Err(words) }
    })
    .await;
    Dead { replay: Some((run, 1)), ..dead.clone() }.produce(&fixture.topics).await;
    console.state(&dead, "resolved").await;
    // It dies again later, in no replay: that is news.
    dead.produce(&fixture.topics).await;
    let item = console.state(&dead, "open").await;
    assert_eq!(item["deaths"], 2);
    console.stop().await;
}
