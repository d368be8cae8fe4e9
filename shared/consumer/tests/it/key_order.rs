//! Order per key: what fails parks its key, and nothing of the key passes it; every other key flows.

use std::time::Duration;

use rdkafka::{
    message::{Header, OwnedHeaders},
    producer::FutureRecord,
};
use sqlx::PgPool;
use uuid::Uuid;
use waybill_consumer::{AfterDead, Consumer, Operations, RetryPolicy, Subscription, metrics, replay_topic};
use waybill_event::{Event, MessageId, OrderEvent, ReplayOutcome, headers};
use waybill_testkit::{Topics, eventually};

use crate::support::{
    Act, Batches, Effects, GROUP, Running, Source, database, dead_letter_topic, effects, ids, inbox, order,
    orders, settings, topics, until_committed, until_effects,
};

fn subscription(after_dead: AfterDead) -> Subscription {
    let tiers = vec![Duration::from_millis(200); 1];
    let policy = RetryPolicy { tiers, ..RetryPolicy::default() };
    Subscription::new(OrderEvent::TOPIC, GROUP).key_ordered(policy, after_dead)
}

/// Delays and attempts enough that nothing dies before the test has looked, however slow the machine is.
fn patient() -> RetryPolicy {
    let tiers = (2..10).map(Duration::from_secs).collect();
    RetryPolicy { tiers, ..RetryPolicy::default() }
}

/// Orders under chosen keys, in one partition.
async fn produce(topics: &Topics, key: Option<&str>, orders: &[OrderEvent]) -> Vec<MessageId> {
    let (source, mut ids) = (Source::new(topics), Vec::new());
    for order in orders {
        let (id, value) = (MessageId::new(), waybill_event::encode(order).unwrap());
        let text = id.to_string();
        let list = [(headers::CE_ID, Some(text.as_bytes()))];
        source.raw(0, key.map(str::as_bytes), Some(&value), &list).await;
        ids.push(id);
    }
    ids
}

async fn parked(pool: &PgPool) -> i64 {
    sqlx::query_scalar("select count(*) from messaging.parked_message").fetch_one(pool).await.unwrap()
}

async fn until_parked(pool: &PgPool, count: i64) {
    eventually(async || match parked(pool).await {
        parked if parked == count => Ok(()),
        parked => Err(format!("{parked} of {count} parked")),
    })
    .await;
}

/// Effects of these orders only, in the order of the writes.
async fn of(pool: &PgPool, orders: &[OrderEvent]) -> Vec<Uuid> {
    let mine = ids(orders);
    effects(pool).await.into_iter().filter(|order| mine.contains(order)).collect()
}

#[tokio::test]
async fn a_failing_message_holds_its_key_and_no_other() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (a, b, none) = (orders(4), orders(30), orders(2));
    handler.on(a[1].order_id, Act::Transient);
    handler.on(none[0].order_id, Act::Transient);
    for (at, order) in a.iter().enumerate() {
        produce(&topics, Some("a"), std::slice::from_ref(order)).await;
        produce(&topics, Some("b"), &b[at * 5..at * 5 + 5]).await;
    }
    produce(&topics, None, &none).await;
    let mut settings = settings(&topics);
    settings.batch_wait = Duration::from_millis(50);
    let subscribed = Subscription::new(OrderEvent::TOPIC, GROUP)
        .key_ordered(patient(), AfterDead::Continue)
        .handler(handler.clone());
    let running = Running::start(&database.pool, settings, subscribed);
    until_committed(&topics, 0, 26).await;
    assert_eq!(of(&database.pool, &a).await, ids(&a[..1]));
    assert_eq!(of(&database.pool, &b).await, ids(&b[..20]));
    assert_eq!(of(&database.pool, &none).await, ids(&none[1..]), "a null key is no key");
    assert_eq!(parked(&database.pool).await, 4);
    let noted = "select error_code, error_class, error_text from messaging.parked_message where error_code is not null";
    let noted: Vec<(String, String, String)> = sqlx::query_as(noted).fetch_all(&database.pool).await.unwrap();
    let failure = ("handler".to_owned(), "transient".to_owned(), "not now".to_owned());
    assert_eq!(noted, [failure.clone(), failure], "operators see why, of the heads");
    // What arrives now joins the park, and a redelivery of what is parked is nothing.
    produce(&topics, Some("b"), &b[20..]).await;
    let late = order();
    produce(&topics, Some("a"), std::slice::from_ref(&late)).await;
    until_committed(&topics, 0, 37).await;
    assert_eq!(of(&database.pool, &b).await, ids(&b));

    handler.heal(a[1].order_id);
    handler.heal(none[0].order_id);
    until_parked(&database.pool, 0).await;
    let all: Vec<_> = a.iter().cloned().chain([late]).collect();
    assert_eq!(of(&database.pool, &all).await, ids(&all));
    assert_eq!(of(&database.pool, &none).await.len(), 2);
    assert!(topics.read(&dead_letter_topic()).await.is_empty());
    running.stop().await;
}

#[tokio::test]
async fn a_batch_handlers_outcomes_invert_nothing() {
    let (database, topics, handler) = (database().await, topics(1).await, Batches::default());
    let a = orders(6);
    handler.0.on(a[2].order_id, Act::Transient);
    produce(&topics, Some("a"), &a).await;
    let subscribed = Subscription::new(OrderEvent::TOPIC, GROUP)
        .key_ordered(patient(), AfterDead::Continue)
        .batch_handler(handler.clone());
    let running = Running::start(&database.pool, settings(&topics), subscribed);
    until_committed(&topics, 0, 6).await;
    assert_eq!(of(&database.pool, &a).await, ids(&a[..2]));
    handler.0.heal(a[2].order_id);
    until_effects(&database.pool, 6).await;
    assert_eq!(of(&database.pool, &a).await, ids(&a));
    running.stop().await;
}

#[tokio::test]
async fn after_the_last_attempt_the_key_goes_on_and_a_replay_comes_to_the_front() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    topics.add(&replay_topic("", OrderEvent::TOPIC, GROUP), 1, &[]).await;
    topics.add(ReplayOutcome::TOPIC, 1, &[]).await;
    let a = orders(4);
    handler.on(a[0].order_id, Act::Transient);
    handler.on(a[2].order_id, Act::Panic);
    let sent = produce(&topics, Some("a"), &a).await;
    let subscribed = subscription(AfterDead::Continue).handler(handler.clone());
    let running = Running::start(&database.pool, settings(&topics), subscribed);
    until_effects(&database.pool, 2).await;
    until_parked(&database.pool, 0).await;
    assert_eq!(of(&database.pool, &a).await, [a[1].order_id, a[3].order_id]);
    let dead = topics.read(&dead_letter_topic()).await;
    let classes: Vec<_> = dead.iter().map(|dead| dead.header(headers::ERROR_CLASS)).collect();
    assert_eq!(classes, [Some("transient"), Some("panic")]);
    assert_eq!(dead[0].header(headers::ATTEMPT), Some("2"));
    assert_eq!(inbox(&database.pool).await.get(&sent[0].as_uuid()).map(String::as_str), Some("dead"));

    // The cause is repaired for the first only: a replay of both, one of which fails again.
    handler.heal(a[0].order_id);
    let run = Uuid::now_v7().to_string();
    for dead in &dead {
        let keep = |name: &str| !name.starts_with("waybill-") || name.starts_with("waybill-origin-");
        let list = dead.headers.iter().filter(|(name, _)| keep(name)).fold(
            OwnedHeaders::new().insert(Header { key: headers::REPLAY_ID, value: Some(&run) }),
            |list, (key, value)| list.insert(Header { key, value: value.as_deref() }),
        );
        let name = topics.name(&replay_topic("", OrderEvent::TOPIC, GROUP));
        let mut record = FutureRecord::<[u8], [u8]>::to(&name).partition(0).headers(list);
        (record.key, record.payload) = (dead.key.as_deref(), dead.value.as_deref());
        topics.producer().send(record, Duration::from_secs(30)).await.unwrap();
    }
    let told = async || topics.read(ReplayOutcome::TOPIC).await.pop().ok_or("nothing told");
    let told = eventually(told).await;
    let told: ReplayOutcome = waybill_event::decode(told.value.as_deref().unwrap()).unwrap();
    assert_eq!((told.message_id, told.outcome.as_str()), (sent[0].as_uuid(), "resolved"));
    let again = async || match topics.read(&dead_letter_topic()).await {
        dead if dead.len() == 3 => Ok(dead),
        dead => Err(format!("{} dead", dead.len())),
    };
    let again = eventually(again).await.pop().unwrap();
    assert_eq!(again.header(headers::REPLAY_ID), Some(run.as_str()));
    until_parked(&database.pool, 0).await;
    assert_eq!(of(&database.pool, &a).await, [a[1].order_id, a[3].order_id, a[0].order_id]);
    running.stop().await;
}

#[tokio::test]
async fn a_blocked_key_waits_for_an_operator_over_a_restart() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (a, b) = (orders(3), orders(2));
    handler.on(a[0].order_id, Act::Permanent);
    produce(&topics, Some("a"), &a[..2]).await;
    produce(&topics, Some("b"), &b[..1]).await;
    let start = || -> (Operations, tokio_util::sync::CancellationToken, tokio::task::JoinHandle<()>) {
        let subscribed = subscription(AfterDead::Block).handler(handler.clone());
        let consumer = Consumer::builder(database.pool.clone(), settings(&topics))
            .subscribe(subscribed)
            .build()
            .unwrap();
        let (operations, stop) = (consumer.operations(), tokio_util::sync::CancellationToken::new());
        let run = consumer.run(stop.clone());
        (operations, stop, tokio::spawn(async move { run.await.unwrap() }))
    };
    let blocked = async |operations: &Operations| {
        let keys = operations.parked_keys(Some(OrderEvent::TOPIC), Some(GROUP), 0, 10).await.unwrap();
        keys.into_iter().find(|key| key.state == "blocked").ok_or("not blocked")
    };
    let (operations, stop, task) = start();
    eventually(async || blocked(&operations).await).await;
    stop.cancel();
    task.await.unwrap();
    let (operations, stop, task) = start();
    produce(&topics, Some("b"), &b[1..]).await;
    produce(&topics, Some("a"), &a[2..]).await;
    until_committed(&topics, 0, 5).await;
    assert_eq!(of(&database.pool, &b).await, ids(&b));
    assert!(of(&database.pool, &a).await.is_empty());
    let key = eventually(async || blocked(&operations).await).await;
    assert_eq!((key.key.as_slice(), key.keyless, key.messages), (b"a".as_slice(), false, 2));
    assert!(!operations.release(OrderEvent::TOPIC, GROUP, b"b", false).await.unwrap());
    assert!(operations.release(OrderEvent::TOPIC, GROUP, &key.key, key.keyless).await.unwrap());
    until_parked(&database.pool, 0).await;
    assert_eq!(of(&database.pool, &a).await, ids(&a[1..]));
    assert_eq!(topics.read(&dead_letter_topic()).await.len(), 1);
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn above_the_cap_the_partition_stops_visibly_and_goes_on_with_room() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (a, b) = (orders(20), orders(1));
    handler.on(a[0].order_id, Act::Transient);
    let mut settings = settings(&topics);
    settings.park.max_rows = 5;
    settings.batch_size = 5;
    settings.buffer_records = 10;
    let subscribed = Subscription::new(OrderEvent::TOPIC, GROUP)
        .key_ordered(patient(), AfterDead::Continue)
        .handler(handler.clone());
    produce(&topics, Some("a"), &a).await;
    let running = Running::start(&database.pool, settings, subscribed);
    // What is parked is counted once a second, so some more may still come in.
    let mut more = Vec::new();
    let full = loop {
        match running.status.blocked().pop() {
            Some(blocked) => break blocked,
            None => more.push(order()),
        }
        produce(&topics, Some("a"), &more[more.len() - 1..]).await;
    };
    assert_eq!(full.reason, metrics::PARK_FULL);
    produce(&topics, Some("b"), &b).await;
    assert!(of(&database.pool, &b).await.is_empty());
    handler.heal(a[0].order_id);
    let all: Vec<_> = a.into_iter().chain(more).collect();
    until_effects(&database.pool, all.len() + 1).await;
    assert_eq!(of(&database.pool, &all).await, ids(&all));
    running.stop().await;
}

/// The handler has ended each time; that its end could not be stored is the database's fault.
#[tokio::test]
async fn a_head_whose_end_cannot_be_stored_is_not_taken_for_one_that_ends_the_process() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let order = order();
    handler.on(order.order_id, Act::RefuseForNow);
    produce(&topics, Some("a"), std::slice::from_ref(&order)).await;
    let running = Running::start(
        &database.pool,
        settings(&topics),
        subscription(AfterDead::Continue).handler(handler.clone()),
    );
    until_parked(&database.pool, 1).await;
    let refuse = "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$; \
                  create trigger refuse before delete on messaging.suspect execute function refuse()";
    sqlx::raw_sql(refuse).execute(&database.pool).await.unwrap();
    handler.heal(order.order_id);
    let tried = async || match handler.calls(order.order_id) {
        7.. => Ok(()),
        calls => Err(calls),
    };
    eventually(tried).await;
    assert!(effects(&database.pool).await.is_empty());
    sqlx::raw_sql("drop trigger refuse on messaging.suspect").execute(&database.pool).await.unwrap();
    until_parked(&database.pool, 0).await;
    assert_eq!(effects(&database.pool).await, [order.order_id]);
    assert!(topics.read(&dead_letter_topic()).await.is_empty());
    running.stop().await;
}
