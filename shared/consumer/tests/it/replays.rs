//! Replays: to one group only, one attempt, one effect, and an outcome that is told.

use std::time::Duration;

use rdkafka::{
    message::{Header, OwnedHeaders},
    producer::FutureRecord,
};
use sqlx::PgPool;
use uuid::Uuid;
use waybill_consumer::{
    Failure, Handler, Message, ReplaySafety, RetryPolicy, Settings, Subscribed, Subscription, Tx, metrics,
    replay_topic,
};
use waybill_event::{Event, MessageId, OrderEvent, ReplayOutcome, headers};
use waybill_testkit::{Topics, eventually, topics::Record};

use crate::support::{
    Act, Effects, GROUP, Running, Source, database, dead_letter_topic, effects, ids, orders, settings,
    topics, until_committed, until_effects,
};

fn replays() -> String {
    replay_topic("", OrderEvent::TOPIC, GROUP)
}

async fn with_replays() -> Topics {
    let topics = topics(2).await;
    topics.add(&replays(), 2, &[]).await;
    topics.add(ReplayOutcome::TOPIC, 1, &[]).await;
    topics
}

fn each(handler: &Effects) -> Subscribed {
    Subscription::new(OrderEvent::TOPIC, GROUP).retry(RetryPolicy::default()).handler(handler.clone())
}

/// As the console does it.
async fn replay(topics: &Topics, dead: &Record, replay: Uuid) {
    let keep = |name: &str| !name.starts_with("waybill-") || name.starts_with("waybill-origin-");
    let replay = replay.to_string();
    let kept = dead.headers.iter().filter(|(name, _)| keep(name));
    let list = kept
        .fold(OwnedHeaders::new(), |list, (key, value)| list.insert(Header { key, value: value.as_deref() }));
    let list = list.insert(Header { key: headers::REPLAY_ID, value: Some(replay.as_bytes()) });
    let name = topics.name(&replays());
    let mut record = FutureRecord::<[u8], [u8]>::to(&name).partition(dead.partition).headers(list);
    (record.key, record.payload) = (dead.key.as_deref(), dead.value.as_deref());
    topics.producer().send(record, Duration::from_secs(30)).await.unwrap();
}

async fn until_dead(topics: &Topics, count: usize) -> Vec<Record> {
    eventually(async || {
        let dead = topics.read(&dead_letter_topic()).await;
        if dead.len() >= count { Ok(dead) } else { Err(format!("{} of {count} dead", dead.len())) }
    })
    .await
}

async fn until_outcomes(topics: &Topics, count: usize) -> Vec<ReplayOutcome> {
    eventually(async || {
        let told = topics.read(ReplayOutcome::TOPIC).await;
        if told.len() < count {
            return Err(format!("{} of {count} outcomes", told.len()));
        }
        Ok(told
            .iter()
            .map(|record| waybill_event::decode(record.value.as_deref().unwrap()).unwrap())
            .collect())
    })
    .await
}

async fn row(pool: &PgPool, id: MessageId) -> Option<(String, Option<Uuid>)> {
    sqlx::query_as("select outcome, replay_id from messaging.processed_message where message_id = $1")
        .bind(id.as_uuid())
        .fetch_optional(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_dead_message_is_replayed_to_its_group_alone_and_resolved_once() {
    let (database, topics, handler) = (database().await, with_replays().await, Effects::default());
    let (elsewhere, other) = (crate::support::database().await, Effects::default());
    let (orders, source) = (orders(1), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Permanent);
    let id = source.orders(1, &orders).await[0];
    let other_group = Subscription::new(OrderEvent::TOPIC, "other").handler(other.clone());
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    let beside = Running::start(&elsewhere.pool, settings(&topics), other_group);
    let dead = until_dead(&topics, 1).await.remove(0);
    until_effects(&elsewhere.pool, 1).await;
    handler.heal(orders[0].order_id);

    let (run, again) = (Uuid::now_v7(), Uuid::now_v7());
    for run in [run, run, again] {
        replay(&topics, &dead, run).await;
    }
    let told = until_outcomes(&topics, 3).await;
    let told: Vec<_> = told.iter().map(|told| (told.replay_id, told.outcome.as_str())).collect();
    assert_eq!(told, [(run, "resolved"), (run, "resolved"), (again, "already_processed")]);
    let outcome: ReplayOutcome = until_outcomes(&topics, 1).await.remove(0);
    assert_eq!(outcome.message_id, id.as_uuid());
    assert_eq!((outcome.consumer_group, outcome.topic), (topics.name(GROUP), topics.name(OrderEvent::TOPIC)));
    assert_eq!(effects(&database.pool).await, ids(&orders));
    assert_eq!(row(&database.pool, id).await, Some(("done".to_owned(), Some(run))));
    // The other group has had its one copy from the source and nothing since.
    assert_eq!(other.calls(orders[0].order_id), 1);
    assert_eq!(topics.read(OrderEvent::TOPIC).await.len(), 1);
    running.stop().await;
    beside.stop().await;
}

#[tokio::test]
async fn a_replay_that_fails_again_is_a_dead_letter_at_once_and_stays_dead() {
    let (database, topics, handler) = (database().await, with_replays().await, Effects::default());
    let (orders, source) = (orders(1), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Permanent);
    let id = source.orders(0, &orders).await[0];
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    let dead = until_dead(&topics, 1).await.remove(0);
    for (act, class, count) in [(Act::Transient, "transient", 2), (Act::Panic, "panic", 3)] {
        handler.on(orders[0].order_id, act);
        let run = Uuid::now_v7();
        replay(&topics, &dead, run).await;
        let again = until_dead(&topics, count).await.pop().unwrap();
        assert_eq!(again.header(headers::REPLAY_ID), Some(run.to_string().as_str()));
        assert_eq!(
            (again.header(headers::ERROR_CLASS), again.header(headers::ATTEMPT)),
            (Some(class), Some("1"))
        );
        assert_eq!(again.header(headers::ORIGIN_TOPIC), dead.header(headers::ORIGIN_TOPIC));
        assert_eq!((&again.key, &again.value), (&dead.key, &dead.value));
        assert_eq!(row(&database.pool, id).await, Some(("dead".to_owned(), None)));
    }
    assert!(effects(&database.pool).await.is_empty());
    assert!(topics.read(ReplayOutcome::TOPIC).await.is_empty());
    // An old copy from the log is still skipped.
    handler.heal(orders[0].order_id);
    source.order(0, &orders[0], id).await;
    until_committed(&topics, 0, 2).await;
    assert!(effects(&database.pool).await.is_empty());
    running.stop().await;
}

#[tokio::test]
async fn a_replay_without_a_row_is_handled_and_one_by_hand_is_a_replay_of_its_own() {
    let (database, topics, handler) = (database().await, with_replays().await, Effects::default());
    let (orders, producer) = (orders(1), topics.producer());
    let id = MessageId::new();
    let (text, name) = (id.to_string(), topics.name(&replays()));
    let value = waybill_event::encode(&orders[0]).unwrap();
    for _ in 0..2 {
        let list = OwnedHeaders::new().insert(Header { key: headers::CE_ID, value: Some(&text) });
        let record = FutureRecord::to(&name).partition(0).key("k").payload(&value).headers(list);
        producer.send(record, Duration::from_secs(30)).await.unwrap();
    }
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    let told = until_outcomes(&topics, 2).await;
    let told: Vec<_> = told.iter().map(|told| told.outcome.as_str()).collect();
    assert_eq!(told, ["resolved", "already_processed"]);
    assert_eq!(effects(&database.pool).await, ids(&orders));
    running.stop().await;
}

#[tokio::test]
async fn a_group_that_must_not_be_replayed_refuses() {
    let (database, topics, handler) = (database().await, with_replays().await, Effects::default());
    let (orders, source) = (orders(1), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Permanent);
    source.orders(0, &orders).await;
    let never = Subscription::new(OrderEvent::TOPIC, GROUP)
        .replay_safety(ReplaySafety::Never)
        .handler(handler.clone());
    let running = Running::start(&database.pool, settings(&topics), never);
    let dead = until_dead(&topics, 1).await.remove(0);
    handler.heal(orders[0].order_id);
    replay(&topics, &dead, Uuid::now_v7()).await;
    let refused = until_dead(&topics, 2).await.pop().unwrap();
    assert_eq!(refused.header(headers::ERROR_CODE), Some("replay_refused"));
    assert_eq!(handler.calls(orders[0].order_id), 1);
    running.stop().await;
}

#[tokio::test]
async fn what_does_not_decode_comes_back_as_a_dead_letter() {
    let (database, topics, handler) = (database().await, with_replays().await, Effects::default());
    let name = topics.name(&replays());
    let record = FutureRecord::to(&name).partition(0).key("k").payload("noise");
    topics.producer().send(record, Duration::from_secs(30)).await.unwrap();
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    let dead = until_dead(&topics, 1).await.remove(0);
    assert_eq!(dead.header(headers::ERROR_CLASS), Some("decode"));
    // A second failure of the same message is told too: it is the answer to another replay.
    let list = OwnedHeaders::new()
        .insert(Header { key: headers::ORIGIN_TOPIC, value: dead.header(headers::ORIGIN_TOPIC) })
        .insert(Header { key: headers::ORIGIN_PARTITION, value: dead.header(headers::ORIGIN_PARTITION) })
        .insert(Header { key: headers::ORIGIN_OFFSET, value: dead.header(headers::ORIGIN_OFFSET) })
        .insert(Header { key: headers::ORIGIN_TIMESTAMP, value: dead.header(headers::ORIGIN_TIMESTAMP) });
    let record = FutureRecord::to(&name).partition(0).key("k").payload("noise").headers(list);
    topics.producer().send(record, Duration::from_secs(30)).await.unwrap();
    until_dead(&topics, 2).await;
    running.stop().await;
}

#[tokio::test]
async fn an_outcome_that_cannot_be_told_keeps_the_offset_until_it_can() {
    let (database, topics, handler) = (database().await, topics(2).await, Effects::default());
    topics.add(&replays(), 2, &[]).await;
    let (orders, source) = (orders(1), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Permanent);
    source.orders(0, &orders).await;
    let mut settings: Settings = settings(&topics);
    settings.dead_letter_timeout = Duration::from_secs(2);
    let running = Running::start(&database.pool, settings, each(&handler));
    let dead = until_dead(&topics, 1).await.remove(0);
    handler.heal(orders[0].order_id);
    replay(&topics, &dead, Uuid::now_v7()).await;
    until_effects(&database.pool, 1).await;
    let blocked = eventually(async || running.status.blocked().pop().ok_or("not blocked")).await;
    assert_eq!(blocked.reason, metrics::OUTCOMES);
    assert_eq!(topics.committed(GROUP, &replays(), 0).await, None);
    topics.add(ReplayOutcome::TOPIC, 1, &[]).await;
    assert_eq!(until_outcomes(&topics, 1).await[0].outcome, "resolved");
    eventually(async || topics.committed(GROUP, &replays(), 0).await.ok_or("not moved")).await;
    assert_eq!(effects(&database.pool).await, ids(&orders));
    running.stop().await;
}

/// Its hook panics after each commit.
#[derive(Debug, Clone, Default)]
struct Careless(Effects);

impl Handler for Careless {
    type Event = OrderEvent;

    async fn handle(&self, tx: &mut Tx<'_>, message: &Message<OrderEvent>) -> Result<(), Failure> {
        self.0.handle(tx, message).await
    }

    fn committed(&self, messages: &[Message<OrderEvent>]) {
        Handler::committed(&self.0, messages);
        panic!("after the commit");
    }
}

#[tokio::test]
async fn a_hook_that_panics_after_a_replay_ends_nothing() {
    let (database, topics, handler) = (database().await, with_replays().await, Careless::default());
    let (orders, source) = (orders(2), Source::new(&topics));
    handler.0.on(orders[0].order_id, Act::Permanent);
    source.orders(0, &orders[..1]).await;
    let subscribed = Subscription::new(OrderEvent::TOPIC, GROUP).handler(handler.clone());
    let running = Running::start(&database.pool, settings(&topics), subscribed);
    let dead = until_dead(&topics, 1).await.remove(0);
    handler.0.heal(orders[0].order_id);
    replay(&topics, &dead, Uuid::now_v7()).await;
    assert_eq!(until_outcomes(&topics, 1).await[0].outcome, "resolved");
    source.orders(0, &orders[1..]).await;
    assert_eq!(until_effects(&database.pool, 2).await, ids(&orders));
    running.stop().await;
}
