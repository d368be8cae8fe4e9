//! Replays: to the one group that failed, byte for byte, each outcome told.

use std::collections::HashSet;

use serde_json::{Value, json};
use uuid::Uuid;
use waybill_testkit::eventually;

use crate::consumer::{Does, Played, say};
use crate::fixture::{Dead, Fixture, REPLAY, everything, id};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_reaches_the_group_that_failed_as_the_message_was() {
    let fixture = Fixture::new().await;
    for name in ["orders.v1", "orders.v1.other.replay"] {
        fixture.topics.add(name, 2, &[]).await;
    }
    let console = fixture.console().await;
    let foreign: Vec<(String, Option<Vec<u8>>)> =
        [("a", Some(&b"1"[..])), ("a", Some(b"2")), ("b", None), ("", Some(b"x")), ("__mirror", Some(b"m"))]
            .map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)))
            .into();
    let trace_id = Some("4bf92f3577b34da6a3ce929d0e0e4736".to_owned());
    let full = Dead { foreign, trace_id, ..Dead::new("full").at(1) };
    let empty = Dead { value: Some(Vec::new()), ..Dead::new("empty").at(2) };
    for dead in [&full, &empty] {
        dead.produce(&fixture.topics).await;
    }
    console.letters(2).await;
    let plan = console.plan(&everything()).await;
    let run = console.replay(&plan, &json!({})).await;
    let records = eventually(async || {
        let records = fixture.topics.read(REPLAY).await;
        if records.len() == 2 { Ok(records) } else { Err(records.len()) }
    })
    .await;
    let of = |dead: &Dead| records.iter().find(|record| record.key == dead.key).expect("a record");
    let record = of(&full);
    assert_eq!((&record.value, record.partition), (&full.value, 0));
    let names: Vec<_> = record.headers.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "a",
        "a",
        "b",
        "",
        "ce_id",
        "ce_type",
        "traceparent",
        "waybill-origin-topic",
        "waybill-origin-partition",
        "waybill-origin-offset",
        "waybill-replay-id",
        "waybill-replayed-by",
        "waybill-replay-count",
    ];
    assert_eq!(names, expected);
    assert_eq!((&record.headers[1].1, &record.headers[2].1), (&Some(b"2".to_vec()), &None));
    assert_eq!(record.header("waybill-replay-id"), Some(run.to_string().as_str()));
    assert_eq!(record.header("waybill-replay-count"), Some("1"));
    assert_eq!(record.header("ce_id"), Some(full.message_id.to_string().as_str()));
    assert_eq!(of(&empty).value.as_deref(), Some(&[][..]));
    for name in ["orders.v1", "orders.v1.other.replay"] {
        assert_eq!(fixture.topics.read(name).await, []);
    }
    // Sent is not resolved: it shows how long it has been waiting.
    let item = console.state(&full, "sent").await;
    assert!(item["waiting_s"].is_number() && item["replays"] == 1);
    assert_eq!(console.plan(&everything()).await["targets"][0]["skipped"], json!({"in_flight": 2}));
    say(&fixture.topics, full.message_id, run, "resolved").await;
    say(&fixture.topics, empty.message_id, run, "already_processed").await;
    console.state(&full, "resolved").await;
    console.state(&empty, "already_processed").await;
    let run = console.ended(run).await;
    assert_eq!((&run["state"], &run["progress"]["resolved"]), (&json!("done"), &json!(1)));
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_always_fails_ends_at_the_loop_cap() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let played = Played::start(&fixture.topics, |_| Does::FailAgain);
    let dead = Dead::new("k");
    dead.produce(&fixture.topics).await;
    console.letters(1).await;
    for round in 1..=3 {
        let plan = console.plan(&everything()).await;
        assert_eq!(plan["ready"], 1, "{plan}");
        let run = console.replay(&plan, &json!({})).await;
        let run = console.ended(run).await;
        assert_eq!(run["progress"]["failed_again"], 1, "{run}");
        let item = console.state(&dead, "failed_again").await;
        assert_eq!((&item["deaths"], &item["replays"]), (&json!(round + 1), &json!(round)));
    }
    let plan = console.plan(&everything()).await;
    assert_eq!(plan["targets"][0]["skipped"], json!({"loop_cap": 1}));
    let loops = console.get("/v1/dlt/loops").await;
    assert_eq!(loops["items"].as_array().map(Vec::len), Some(1));
    // One item with its history, under the id that it always had.
    let item = console.letters(1).await.remove(0);
    let shown = console.get(&format!("/v1/dlt/items/{}", id(&item["item_id"]))).await;
    assert_eq!(
        (shown["history"].as_array().map(Vec::len), shown["sendings"].as_array().map(Vec::len)),
        (Some(4), Some(3))
    );
    assert!(played.got().iter().all(|got| got.message_id == dead.message_id));
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_cannot_be_sent_is_reported_and_blocks_nobody() {
    let fixture = Fixture::new().await;
    fixture.topics.add("orders.v1.small.dlt", 1, &[]).await;
    // The replay topic of this group takes less than its dead-letter topic.
    fixture.topics.add("orders.v1.small.replay", 1, &[("max.message.bytes", "2000")]).await;
    let console = fixture.console().await;
    let big = Dead { group: "small", value: Some(vec![7; 10_000]), ..Dead::new("big") };
    big.produce(&fixture.topics).await;
    for n in 0..20 {
        Dead { group: "small", ..Dead::new(&format!("k{n}")) }.produce(&fixture.topics).await;
    }
    console.letters(21).await;
    // No service of the fixture consumes as this group: the plan is written by hand, to test the sending alone.
    let plan = Uuid::now_v7();
    sqlx::query(
        "insert into console.plan (plan_id, made_by, filter, hash, ready, skipped, summary)
         values ($1, $1, '{}', '', 21, 0, '{\"reconcile_first\": true, \"targets\": [], \"skipped_items\": []}')",
    )
    .bind(plan)
    .execute(&fixture.database.pool)
    .await
    .expect("plan");
    sqlx::query(
        "insert into console.plan_item (plan_id, position, item_id, record_id, target_topic)
         select $1, row_number() over (order by dead_at, item_id), item_id, record_id, $2 from console.item",
    )
    .bind(plan)
    .bind(fixture.topics.name("orders.v1.small.replay"))
    .execute(&fixture.database.pool)
    .await
    .expect("letters");
    let request = json!({"plan_id": plan, "canary": 0, "rate": 500});
    assert_eq!(console.refused("/v1/dlt/replays", &request).await, (422, "acknowledgement-needed".into()));
    let request = json!({"plan_id": plan, "canary": 0, "rate": 500, "acknowledge_reconcile": true});
    let run = id(&console.post("/v1/dlt/replays", &request).await["replay_id"]);
    let run = eventually(async || {
        let run = console.get(&format!("/v1/dlt/replays/{run}")).await;
        let progress = &run["progress"];
        if progress["sent"] == 20 && progress["failed"] == 1 { Ok(run) } else { Err(run) }
    })
    .await;
    assert_eq!(run["troubles"][0]["state"], "failed");
    assert_eq!(fixture.topics.read("orders.v1.small.replay").await.len(), 20);
    console.state(&big, "open").await;
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_put_away_stays_away_unless_it_dies_again() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let (kept, other) = (Dead::new("a"), Dead::new("b"));
    for dead in [&kept, &other] {
        dead.produce(&fixture.topics).await;
    }
    console.letters(2).await;
    let everything = |reason: &str| json!({"filter": {"topic": "orders.v1"}, "reason": reason});
    assert_eq!(console.refused("/v1/dlt/archive", &everything(" ")).await.0, 400);
    let away = console.post("/v1/dlt/archive", &everything("ticket 7")).await;
    assert_eq!(away, json!({"changed": 2, "left": 0, "matched": 2}));
    assert_eq!(console.state(&kept, "archived").await["archived_reason"], "ticket 7");
    assert_eq!(console.get("/v1/dlt/groups").await["groups"], json!([]));
    other.produce(&fixture.topics).await;
    console.state(&other, "open").await;
    let back = console.post("/v1/dlt/restore", &everything("after all")).await;
    assert_eq!(back, json!({"changed": 1, "left": 0, "matched": 1}));
    console.state(&kept, "open").await;
    // The audit has each act and what it did to each message, and takes nothing back.
    let acts = console.get("/v1/audit").await;
    let verbs: Vec<_> =
        acts["acts"].as_array().expect("acts").iter().map(|act| act["verb"].clone()).collect();
    assert_eq!(verbs, ["restore", "archive"]);
    let act = console.get(&format!("/v1/audit/{}", acts["acts"][1]["audit_id"])).await;
    let of: HashSet<Uuid> = act["results"]
        .as_array()
        .expect("results")
        .iter()
        .map(|result: &Value| id(&result["message_id"]))
        .collect();
    assert_eq!(of, HashSet::from([kept.message_id, other.message_id]));
    for statement in [
        "update console.audit set verb = 'x'",
        "delete from console.audit",
        "delete from console.audit_result",
        "truncate console.audit_result",
    ] {
        let error = sqlx::query(statement).execute(&fixture.database.pool).await.expect_err(statement);
        assert!(error.to_string().contains("append-only"), "{error}");
    }
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_dies_again_while_it_is_put_away_stays() {
    let fixture = Fixture::new().await;
    let console = fixture.console_with(&[("DATABASE_LOCK_TIMEOUT", "20s")]).await;
    for by in ["filter", "ids"] {
        let dead = Dead::new(by);
        dead.produce(&fixture.topics).await;
        let item = console.letter(&dead).await;
        let request = match by {
            "ids" => json!({"ids": [item["item_id"]], "reason": "known"}),
            _ => json!({"filter": {"key": by}, "reason": "known"}),
        };
        // The new death waits for the letter first, then the archive.
        let mut held = fixture.database.pool.begin().await.expect("begins");
        sqlx::query("select 1 from console.item for update").execute(&mut *held).await.expect("locks");
        dead.produce(&fixture.topics).await;
        fixture.waiting(1).await;
        let (away, ()) = tokio::join!(console.post("/v1/dlt/archive", &request), async {
            fixture.waiting(2).await;
            held.commit().await.expect("commits");
        });
        assert_eq!(away, json!({"changed": 0, "left": 1, "matched": 1}), "{by}");
        let item = console.letter(&dead).await;
        assert_eq!((&item["state"], &item["deaths"]), (&json!("open"), &json!(2)), "{by}");
    }
    console.stop().await;
}
