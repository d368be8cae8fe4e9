//! Retry topics: never early, nothing lost, bytes as they came, and an end.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use rdkafka::{
    message::{Header, OwnedHeaders},
    producer::FutureRecord,
};
use waybill_consumer::{RetryPolicy, Subscribed, Subscription, metrics, retry_topic};
use waybill_event::{Event, MessageId, OrderEvent, headers, time::ce_time};
use waybill_testkit::{Topics, eventually, topics::Record};

use crate::support::{
    Act, Batches, Effects, GROUP, Running, Source, database, dead_letter_topic, effects, ids, inbox, orders,
    settings, sorted, topics, until_committed, until_effects,
};

const TIERS: [u64; 2] = [200, 500];

fn tier(millis: u64) -> String {
    retry_topic("", OrderEvent::TOPIC, GROUP, Duration::from_millis(millis))
}

fn policy(tiers: &[u64]) -> RetryPolicy {
    let tiers = tiers.iter().map(|millis| Duration::from_millis(*millis)).collect();
    RetryPolicy { tiers, ..RetryPolicy::default() }
}

fn subscription(tiers: &[u64]) -> Subscription {
    Subscription::new(OrderEvent::TOPIC, GROUP).retry(policy(tiers))
}

fn each(handler: &Effects) -> Subscribed {
    subscription(&TIERS).handler(handler.clone())
}

/// One tier, so long that the test has looked before it is over, however slow the machine is.
const LONG: u64 = 3_000;

async fn with_long_tier(partitions: i32) -> Topics {
    let topics = topics(partitions).await;
    topics.add(&tier(LONG), partitions, &[]).await;
    topics
}

async fn with_tiers(partitions: i32) -> Topics {
    let topics = topics(partitions).await;
    for millis in TIERS {
        topics.add(&tier(millis), partitions, &[]).await;
    }
    topics
}

fn time(record: &Record, header: &str) -> chrono::DateTime<Utc> {
    waybill_event::time::parse(record.header(header).unwrap()).unwrap()
}

async fn until_dead(topics: &Topics, count: usize) -> Vec<Record> {
    eventually(async || {
        let dead = topics.read(&dead_letter_topic()).await;
        if dead.len() >= count { Ok(dead) } else { Err(format!("{} of {count} dead", dead.len())) }
    })
    .await
}

#[tokio::test]
async fn a_failing_message_passes_each_tier_unchanged_and_ends_as_a_dead_letter() {
    let (database, topics, handler) = (database().await, with_tiers(3).await, Effects::default());
    let (orders, source) = (orders(3), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Transient);
    let id = MessageId::new();
    let text = id.to_string();
    let value = waybill_event::encode(&orders[0]).unwrap();
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let given: [(&str, Option<&[u8]>); 6] = [
        ("twice", Some(b"1")),
        (headers::CE_ID, Some(text.as_bytes())),
        ("null", None),
        (headers::TRACEPARENT, Some(trace.as_bytes())),
        ("twice", Some(&[0xff, 0])),
        ("", Some(b"")),
    ];
    source.raw(2, Some(&[0xfe, 1]), Some(&value), &given).await;
    source.orders(2, &orders[1..]).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));

    // Nothing waits for it.
    assert_eq!(until_effects(&database.pool, 2).await, ids(&orders[1..]));
    until_committed(&topics, 2, 3).await;
    let dead = until_dead(&topics, 1).await.remove(0);
    let hops = [topics.read(&tier(200)).await.remove(0), topics.read(&tier(500)).await.remove(0), dead];
    let original = &topics.read(OrderEvent::TOPIC).await[0];
    let size = |hop: &Record| {
        hop.headers.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, Vec::len)).sum::<usize>()
    };
    for (hop, attempt) in hops.iter().zip(["1", "2", "3"]) {
        assert_eq!((hop.partition, &hop.key, &hop.value), (2, &original.key, &original.value));
        assert_eq!(hop.headers[..given.len()], original.headers, "order, duplicates, null and empty");
        let number = |name: &str| hop.headers.iter().filter(|(header, _)| header == name).count();
        assert_eq!(
            (number(headers::TRACEPARENT), number(headers::ATTEMPT), number(headers::GROUP)),
            (1, 1, 1)
        );
        for (name, expected) in [
            (headers::ORIGIN_TOPIC, topics.name(OrderEvent::TOPIC).as_str()),
            (headers::ORIGIN_PARTITION, "2"),
            (headers::ORIGIN_OFFSET, "0"),
            (headers::ATTEMPT, attempt),
            (headers::ERROR_CLASS, "transient"),
            (headers::ERROR_MESSAGE, "not now"),
        ] {
            assert_eq!(hop.header(name), Some(expected), "{name}");
        }
        assert_eq!(hop.header(headers::FIRST_FAILED_AT), hops[0].header(headers::FIRST_FAILED_AT));
    }
    assert_eq!(size(&hops[0]), size(&hops[1]), "headers do not grow");
    assert_eq!(hops[2].header(headers::DUE_AT), None);
    // Never before its time: the second failure is at least a delay after the first, and so on.
    for (at, millis) in TIERS.into_iter().enumerate() {
        let [due, failed, next] = [
            time(&hops[at], headers::DUE_AT),
            time(&hops[at], headers::FAILED_AT),
            time(&hops[at + 1], headers::FAILED_AT),
        ];
        let delay = TimeDelta::milliseconds(millis as i64);
        assert!(due >= failed + delay && due <= failed + delay + delay / 10 + TimeDelta::milliseconds(1));
        assert!(next >= due - TimeDelta::milliseconds(2), "{next} is before {due}");
    }
    // In its batch, which names nobody, and then once an attempt.
    assert_eq!(handler.calls(orders[0].order_id), 4);
    assert_eq!(inbox(&database.pool).await.get(&id.as_uuid()).map(String::as_str), Some("dead"));
    running.stop().await;
}

#[tokio::test]
async fn a_message_that_is_handled_on_a_later_attempt_is_done_once_and_its_offset_moves() {
    let (database, topics, handler) = (database().await, with_long_tier(1).await, Effects::default());
    let (orders, source) = (orders(1), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Transient);
    let id = source.orders(0, &orders).await[0];
    let running =
        Running::start(&database.pool, settings(&topics), subscription(&[LONG]).handler(handler.clone()));
    eventually(async || if handler.calls(orders[0].order_id) == 1 { Ok(()) } else { Err("not failed") })
        .await;
    handler.heal(orders[0].order_id);
    until_effects(&database.pool, 1).await;
    let moved =
        async || topics.committed(GROUP, &tier(LONG), 0).await.filter(|next| *next == 1).ok_or("not moved");
    eventually(moved).await;
    assert_eq!(inbox(&database.pool).await.get(&id.as_uuid()).map(String::as_str), Some("done"));
    assert_eq!((handler.calls(orders[0].order_id), handler.committed()), (2, vec![id]));
    assert!(topics.read(&dead_letter_topic()).await.is_empty());
    running.stop().await;
}

#[tokio::test]
async fn a_batch_handler_sends_what_it_cannot_do_now_on_its_way_without_a_second_run() {
    let (database, topics, handler) = (database().await, with_long_tier(1).await, Batches::default());
    let (orders, source) = (orders(20), Source::new(&topics));
    for at in [3, 7] {
        handler.0.on(orders[at].order_id, Act::Transient);
    }
    source.orders(0, &orders).await;
    let subscribed = subscription(&[LONG]).batch_handler(handler.clone());
    let running = Running::start(&database.pool, settings(&topics), subscribed);
    until_effects(&database.pool, 18).await;
    until_committed(&topics, 0, 20).await;
    for order in &orders {
        assert!(handler.0.calls(order.order_id) <= 2, "one run of the batch, and one on a tier");
    }
    for at in [3, 7] {
        handler.0.heal(orders[at].order_id);
    }
    until_effects(&database.pool, 20).await;
    running.stop().await;
}

#[tokio::test]
async fn a_missing_retry_topic_keeps_the_offset_until_it_is_there() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (orders, source) = (orders(1), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Transient);
    source.orders(0, &orders).await;
    let mut settings = settings(&topics);
    settings.dead_letter_timeout = Duration::from_secs(2);
    let running = Running::start(&database.pool, settings, each(&handler));
    let blocked = eventually(async || running.status.blocked().pop().ok_or("not blocked")).await;
    assert_eq!(blocked.reason, metrics::RETRY_TOPIC);
    assert_eq!(topics.committed(GROUP, OrderEvent::TOPIC, 0).await, None);
    topics.add(&tier(200), 1, &[]).await;
    until_committed(&topics, 0, 1).await;
    assert_eq!(topics.read(&tier(200)).await.len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn tiers_that_are_no_longer_configured_are_drained() {
    let (database, topics, handler) = (database().await, with_long_tier(2).await, Effects::default());
    let (orders, source) = (orders(1), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Transient);
    source.orders(1, &orders).await;
    let only = |tiers: &[u64]| subscription(tiers).handler(handler.clone());
    let running = Running::start(&database.pool, settings(&topics), only(&[LONG]));
    eventually(async || topics.read(&tier(LONG)).await.pop().ok_or("no retry")).await;
    running.stop().await;
    handler.heal(orders[0].order_id);
    let running = Running::start(&database.pool, settings(&topics), only(&[200]));
    until_effects(&database.pool, 1).await;
    running.stop().await;
}

#[tokio::test]
async fn a_wait_survives_its_partitions_change_of_hands() {
    let (database, topics, handler) = (database().await, topics(4).await, Effects::default());
    let name = tier(3_000);
    topics.add(&name, 4, &[]).await;
    let (orders, source) = (orders(8), Source::new(&topics));
    for order in &orders {
        handler.on(order.order_id, Act::Transient);
    }
    for (at, order) in orders.iter().enumerate() {
        source.order(at as i32 % 4, order, MessageId::new()).await;
    }
    let start = || {
        let subscribed = subscription(&[3_000]).handler(handler.clone());
        Running::start(&database.pool, settings(&topics), subscribed)
    };
    let first = start();
    let waiting = async || if topics.read(&name).await.len() == 8 { Ok(()) } else { Err("not all wait") };
    eventually(waiting).await;
    for order in &orders {
        handler.heal(order.order_id);
    }
    // Partitions move to a second member in the middle of the wait, and the others when the first one goes.
    let second = start();
    eventually(async || if second.status.assigned() > 0 { Ok(()) } else { Err("nothing assigned") }).await;
    first.stop().await;
    until_effects(&database.pool, 8).await;
    let dues: Vec<_> = topics.read(&name).await.iter().map(|record| time(record, headers::DUE_AT)).collect();
    assert!(Utc::now() >= *dues.iter().max().unwrap());
    assert_eq!(sorted(effects(&database.pool).await), sorted(ids(&orders)));
    second.stop().await;
}

/// Produces to a topic as a member whose clock is wrong would.
async fn produce(topics: &Topics, topic: &str, order: &OrderEvent, list: &[(&str, String)]) {
    let id = MessageId::new().to_string();
    let list = list.iter().fold(
        OwnedHeaders::new().insert(Header { key: headers::CE_ID, value: Some(&id) }),
        |list, (key, value)| list.insert(Header { key, value: Some(value) }),
    );
    let (name, key, value) = (topics.name(topic), order.key(), waybill_event::encode(order).unwrap());
    let record = FutureRecord::to(&name).partition(0).key(&key).payload(&value).headers(list);
    topics.producer().send(record, Duration::from_secs(30)).await.unwrap();
}

#[tokio::test]
async fn a_due_time_of_a_wrong_clock_waits_for_the_delay_and_no_longer() {
    let (database, topics, handler) = (database().await, with_tiers(1).await, Effects::default());
    let orders = orders(5);
    let hours = |hours: i64| vec![(headers::DUE_AT, ce_time(Utc::now() + TimeDelta::hours(hours)))];
    let odd = vec![(headers::DUE_AT, "soon".to_owned())];
    for (order, list) in orders.iter().zip([hours(1), hours(-1), odd, Vec::new(), hours(1)]) {
        produce(&topics, &tier(500), order, &list).await;
    }
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    // All wait at the same time; one after the other they would take a minute.
    until_effects(&database.pool, 5).await;
    running.stop().await;
}

#[tokio::test]
async fn attempts_that_a_foreigner_claims_are_not_believed_on_the_source() {
    let (database, topics, handler) = (database().await, with_tiers(1).await, Effects::default());
    let order = orders(1).remove(0);
    handler.on(order.order_id, Act::Transient);
    let list = [
        (headers::ATTEMPT, "99".to_owned()),
        (headers::FIRST_FAILED_AT, ce_time(Utc::now() - TimeDelta::days(1))),
        (headers::DUE_AT, ce_time(Utc::now() + TimeDelta::days(1))),
    ];
    produce(&topics, OrderEvent::TOPIC, &order, &list).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    let retry = eventually(async || topics.read(&tier(200)).await.pop().ok_or("no retry")).await;
    assert_eq!(retry.header(headers::ATTEMPT), Some("1"));
    running.stop().await;
}

#[tokio::test]
async fn the_deadline_ends_what_has_attempts_left() {
    let (database, topics, handler) = (database().await, with_tiers(1).await, Effects::default());
    let (orders, source) = (orders(1), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Transient);
    source.orders(0, &orders).await;
    let policy = RetryPolicy { deadline: Duration::from_millis(300), ..policy(&TIERS) };
    let subscribed = Subscription::new(OrderEvent::TOPIC, GROUP).retry(policy).handler(handler.clone());
    let running = Running::start(&database.pool, settings(&topics), subscribed);
    let dead = until_dead(&topics, 1).await;
    assert_eq!(
        (dead[0].header(headers::ATTEMPT), dead[0].header(headers::ERROR_CLASS)),
        (Some("2"), Some("transient"))
    );
    assert!(topics.read(&tier(500)).await.is_empty());
    running.stop().await;
}

#[tokio::test]
async fn a_record_too_large_for_its_retry_topic_is_dead_and_not_stuck() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    topics.add(&tier(200), 1, &[("max.message.bytes", "600")]).await;
    let (orders, source) = (orders(2), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Transient);
    source.orders(0, &orders).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    let dead = until_dead(&topics, 1).await;
    assert_eq!(dead[0].header(headers::ERROR_CLASS), Some("transient"));
    assert!(dead[0].value.is_some());
    until_committed(&topics, 0, 2).await;
    assert_eq!(effects(&database.pool).await, [orders[1].order_id]);
    running.stop().await;
}

#[tokio::test]
async fn two_copies_on_their_way_have_one_effect() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    // Time enough for the second copy to fail before the first is tried again.
    let delay = 8_000;
    topics.add(&tier(delay), 1, &[]).await;
    let (orders, source) = (orders(1), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Transient);
    let id = source.orders(0, &orders).await[0];
    let subscribed = subscription(&[delay]).handler(handler.clone());
    let running = Running::start(&database.pool, settings(&topics), subscribed);
    let there = async |count| {
        eventually(async || {
            let found = topics.read(&tier(delay)).await.len();
            if found == count { Ok(()) } else { Err(format!("{found} of {count}")) }
        })
        .await;
    };
    there(1).await;
    // As a crash between the retry's acknowledgement and the offset leaves it.
    source.order(0, &orders[0], id).await;
    there(2).await;
    handler.heal(orders[0].order_id);
    let moved =
        async || topics.committed(GROUP, &tier(delay), 0).await.filter(|next| *next == 2).ok_or("not moved");
    eventually(moved).await;
    assert_eq!(effects(&database.pool).await, ids(&orders));
    running.stop().await;
}

#[tokio::test]
async fn the_source_is_shared_evenly_whatever_else_a_group_reads() {
    let (database, topics, handler) = (database().await, topics(4).await, Effects::default());
    for millis in [200, 500, 1_000, 3_000] {
        topics.add(&tier(millis), 4, &[]).await;
    }
    topics.add(&waybill_consumer::replay_topic("", OrderEvent::TOPIC, GROUP), 4, &[]).await;
    let start = || Running::start(&database.pool, settings(&topics), each(&handler));
    let source = topics.name(OrderEvent::TOPIC);
    let first = start();
    let all = async || match first.status.assigned() {
        24 => Ok(()),
        assigned => Err(format!("{assigned} of 24")),
    };
    eventually(all).await;
    // The second comes later, as an instance that is added does.
    let second = start();
    let shared = async || {
        let counts =
            [&first, &second].map(|running| (running.status.assigned_of(&source), running.status.assigned()));
        if counts == [(2, 12), (2, 12)] { Ok(()) } else { Err(counts) }
    };
    eventually(shared).await;
    first.stop().await;
    second.stop().await;
}
