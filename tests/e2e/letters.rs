//! Dead letters of the real services, and what operators do with them on the command line.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;
use waybill_testkit::eventually;
use waybill_testkit::topics::PARTITIONS;
use waybill_tests::operator::Ran;
use waybill_tests::{Client, Operator, System, poison};

const DLT: &str = "orders.v1.point.dlt";
const REPLAY: &str = "orders.v1.point.replay";
/// What the notification group reads besides the points' events, which are news after a replay.
const READ: [&str; 3] = ["orders.v1", "orders.v1.notification.replay", "points.v1.notification.replay"];

/// A customer whose orders die in the point group and nowhere else.
async fn victim(system: &System) -> Client {
    let victim = system.customer();
    poison::refuse(&system.points.pool, victim.customer).await.expect("constraint");
    victim
}

async fn place(customer: &Client, key: &str) -> Uuid {
    let answer = customer.place(key, "CUP-1", 1, "ON_DELIVERY", None).await.expect("answer");
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.id().expect("id")
}

/// All that the notification group has got, done and committed.
#[derive(Debug, PartialEq)]
struct Seen {
    offsets: Vec<(String, i32, Option<i64>)>,
    handled: BTreeMap<String, u64>,
    inbox: Vec<String>,
    told: Vec<String>,
}

/// Of the orders' events.
async fn seen(system: &System) -> Seen {
    let mut offsets = Vec::new();
    for topic in READ {
        for partition in 0..PARTITIONS {
            let offset = system.topics.committed("notification", topic, partition).await;
            offsets.push((topic.to_owned(), partition, offset));
        }
    }
    let http = reqwest::Client::builder().no_proxy().build().expect("client");
    let page = http.get(system.metrics("notification")).send().await.expect("answer");
    let page = page.text().await.expect("text");
    let ours = |line: &&str| {
        line.starts_with("waybill_consumer_messages_total{")
            && !line.contains(&format!("\"{}\"", system.topics.name("points.v1")))
    };
    let counts = page.lines().filter(ours).filter_map(|line| line.rsplit_once(' '));
    let handled = counts.map(|(name, count)| (name.to_owned(), count.parse().expect("count"))).collect();
    let events: Vec<Uuid> = sqlx::query_scalar("select id from messaging.outbox order by seq")
        .fetch_all(&system.orders.pool)
        .await
        .expect("events");
    let list = async |sql: &'static str| -> Vec<String> {
        sqlx::query_scalar(sql).bind(&events).fetch_all(&system.notifications.pool).await.expect("rows")
    };
    Seen {
        offsets,
        handled,
        inbox: list("select message_id || outcome || processed_at || xmin from messaging.processed_message where message_id = any($1) order by 1").await,
        told: list("select message_id || kind || sent_at from notification where message_id = any($1) order by 1").await,
    }
}

/// Offsets follow the handling; waits until they have.
async fn all_committed(system: &System) {
    let records = system.topics.read("orders.v1").await.len() as i64;
    eventually(async || {
        let mut committed = 0;
        for partition in 0..PARTITIONS {
            let offset = system.topics.committed("notification", "orders.v1", partition).await;
            committed += offset.unwrap_or_default();
        }
        if committed == records { Ok(()) } else { Err((committed, records)) }
    })
    .await;
}

async fn letter(operator: &Operator, order: Uuid) -> Value {
    eventually(async || {
        let page = operator.ask(&format!("dlt list --key {order}")).await.expect("answer");
        if page["items"][0].is_object() { Ok(page["items"][0].clone()) } else { Err(page) }
    })
    .await
}

async fn run(operator: &Operator, line: &str, code: i32) -> Ran {
    let ran = operator.run(line).await.expect("runs");
    assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
    ran
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_reaches_the_group_that_failed_alone_and_only_from_who_may_act() {
    let system = System::start(&[]).await;
    let victim = victim(&system).await;
    let order = place(&victim, "dies").await;
    for n in 0..3 {
        place(&system.customer(), &format!("lives-{n}")).await;
    }
    system.settled().await;
    all_committed(&system).await;
    let before = seen(&system).await;
    assert_eq!((before.inbox.len(), before.told.len()), (4, 4), "{before:?}");
    assert_eq!(before.handled.values().sum::<u64>(), 4, "{before:?}");

    let operator = system.operator(&["view", "act"]);
    let dead = letter(&operator, order).await;
    assert_eq!((&dead["state"], &dead["error_code"]), (&json!("open"), &json!(poison::ERROR_CODE)));
    refused(&system, &dead, victim.customer).await;

    let line = format!("dlt replay --key {order}");
    let again = run(&operator, &line, 1).await;
    assert!(again.out.contains("failed_again"), "{again:?}");
    poison::repair(&system.points.pool).await.expect("repaired");
    let well = run(&operator, &format!("{line} --json"), 0).await.json().expect("JSON");
    assert_eq!(well["replay"]["progress"]["resolved"], 1, "{well}");
    system.settled().await;
    system.assert_invariants().await;
    let earned: i64 = sqlx::query_scalar("select sum(amount)::bigint from point_entry where order_id = $1")
        .bind(order)
        .fetch_one(&system.points.pool)
        .await
        .expect("points");
    assert_eq!(earned, 120);
    assert_eq!(letter(&operator, order).await["state"], "resolved");
    // Two replays later: not one record, call, row or offset more.
    assert_eq!(seen(&system).await, before);
    for topic in &READ[1..] {
        assert!(system.topics.read(topic).await.is_empty(), "{topic}");
    }
    let acts = run(&operator, &format!("audit --subject {} --verb replay --json", operator.subject), 0).await;
    assert_eq!(acts.json().expect("JSON")["acts"].as_array().map(Vec::len), Some(2));
}

/// Looking is not acting, and shows no payload.
async fn refused(system: &System, dead: &Value, customer: Uuid) {
    let item = dead["item_id"].as_str().expect("id");
    let view = system.operator(&["view"]);
    for line in [
        format!("dlt plan --id {item}"),
        format!("dlt replay --id {item}"),
        format!("dlt archive --id {item} --reason none"),
        "consumers resume --topic orders.v1 --group point".to_owned(),
        "keys release --topic orders.v1 --group notification --key k".to_owned(),
        format!("tasks cancel {item}"),
        "dlt export --payload".to_owned(),
    ] {
        let ran = run(&view, &line, 1).await;
        assert!(ran.err.contains("403"), "{line}: {ran:?}");
    }
    for line in ["consumers list", "keys list", "tasks list", "audit", "dlt groups", "dlt stats"] {
        run(&view, line, 0).await;
    }
    let customer = customer.to_string();
    let shown = run(&view, &format!("dlt show {item}"), 0).await;
    assert!(shown.out.contains("masked") && !shown.out.contains(&customer), "{shown:?}");
    let masked = view.ask(&format!("dlt show {item}")).await.expect("answer");
    assert!(masked["payload"]["masked"] == true && !masked.to_string().contains(&customer), "{masked}");
    let payload = system.operator(&["view", "payload"]);
    let seen = payload.ask(&format!("dlt show {item}")).await.expect("answer");
    assert_eq!(seen["payload"]["decoded"]["customer_id"], customer, "{seen}");

    let console = system.http("console");
    let subject = Uuid::now_v7();
    let stranger = Operator::with_token(subject, &console, system.issuer.token(subject, "customer"));
    run(&stranger, "dlt list", 1).await;
    // The services themselves are as strict as the console before them.
    let http = reqwest::Client::builder().no_proxy().build().expect("client");
    for (roles, status) in [(&["view"][..], 403), (&["view", "act"][..], 200)] {
        let url = format!("{}/internal/consumer/resume", system.http("point"));
        let answer = http
            .request(Method::POST, url)
            .bearer_auth(system.issuer.operator(subject, roles))
            .json(&json!({"topic": "orders.v1", "group": "point"}))
            .send();
        assert_eq!(answer.await.expect("answer").status().as_u16(), status, "{roles:?}");
    }
    assert!(system.topics.read(REPLAY).await.is_empty(), "something was sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_killed_twice_under_two_operators_sends_each_message_once() {
    const DEAD: usize = 40;
    let mut system = System::start(&[]).await;
    let victim = victim(&system).await;
    for n in 0..DEAD {
        place(&victim, &format!("key-{n}")).await;
    }
    system.settled().await;
    assert_eq!(system.topics.read(DLT).await.len(), DEAD);
    poison::repair(&system.points.pool).await.expect("repaired");
    // Both plans first: each has every message in it, for none is under way yet.
    let operators = [system.operator(&["view", "act"]), system.operator(&["view", "act"])];
    let mut lines = Vec::new();
    for operator in &operators {
        let plan = operator.ask("dlt plan --group point").await.expect("plan");
        assert_eq!(plan["ready"], DEAD, "{plan}");
        let plan = plan["plan_id"].as_str().expect("id");
        lines.push((operator.clone(), format!("dlt replay --plan {plan} --rate 6 --json")));
    }
    let replays =
        lines.into_iter().map(|(operator, line)| tokio::spawn(async move { operator.run(&line).await }));
    let replays: Vec<_> = replays.collect();
    for sent in [5, 20] {
        eventually(async || {
            let records = system.topics.read(REPLAY).await.len();
            if records >= sent { Ok(()) } else { Err(records) }
        })
        .await;
        system.process("console").kill().await;
        // It takes the run over before its index is ready.
        system.spawn("console", None);
    }
    let mut ended = Vec::new();
    for replay in replays {
        // Of the two killed consoles the broker may still wait for the last.
        let ran = tokio::time::timeout(Duration::from_secs(120), replay).await.expect("it ends");
        ended.push(ran.expect("no panic").expect("runs"));
    }
    let runs: Vec<Value> = ended.iter().map(|ran| ran.json().expect("JSON")["replay"].clone()).collect();
    let sum = |name: &str| runs.iter().filter_map(|run| run["progress"][name].as_u64()).sum::<u64>();
    assert_eq!((sum("resolved"), sum("refused")), (DEAD as u64, DEAD as u64), "{runs:#?}");
    for (ran, run) in ended.iter().zip(&runs) {
        let good = run["progress"]["refused"] == 0;
        assert_eq!(ran.code, Some(i32::from(!good)), "{ran:?}");
    }
    let sent = system.topics.read(REPLAY).await;
    let ids: HashSet<_> = sent.iter().filter_map(|record| record.header("ce_id")).collect();
    assert_eq!((sent.len(), ids.len()), (DEAD, DEAD), "each message once");
    system.settled().await;
    system.assert_invariants().await;
    let stats = operators[0].ask("dlt stats").await.expect("answer");
    let topic = system.topics.name(DLT);
    let topics = stats["topics"].as_array().expect("topics");
    let of = topics.iter().find(|t| t["topic"] == *topic || t["topic"] == DLT).expect("the topic");
    assert_eq!((&of["unsettled"], &of["counts"]["resolved"]), (&json!(0), &json!(DEAD)), "{of}");
    assert!(runs.iter().any(|run| run["takeovers"].as_i64() >= Some(2)), "{runs:#?}");
}
