//! Floods of failures, and messages that end the process: neither empties the topic into the dead letters.

use std::{sync::Arc, time::Duration};

use rdkafka::{
    message::{Header, OwnedHeaders},
    producer::FutureRecord,
};
use tokio::sync::Semaphore;
use uuid::Uuid;
use waybill_consumer::{
    AfterDead, BreakerPhase, Consumer, Operations, RetryPolicy, Settings, Subscribed, Subscription, metrics,
    replay_topic, retry_topic,
};
use waybill_event::{Event, OrderEvent, headers};
use waybill_testkit::{Topics, eventually};

use crate::support::{
    Act, Batches, Effects, GROUP, Running, Source, database, dead_letter_topic, effects, ids, inbox, orders,
    settings, sorted, topics, until_committed, until_effects,
};

const TIER: Duration = Duration::from_millis(300);

fn tier() -> String {
    retry_topic("", OrderEvent::TOPIC, GROUP, TIER)
}

fn subscription() -> Subscription {
    let policy = RetryPolicy { tiers: vec![TIER], ..RetryPolicy::default() };
    Subscription::new(OrderEvent::TOPIC, GROUP).retry(policy)
}

fn impatient(topics: &Topics) -> Settings {
    let mut settings = settings(topics);
    settings.breaker.probe_min = Duration::from_millis(50);
    settings.breaker.probe_max = Duration::from_millis(200);
    settings
}

async fn outage(subscribed: Subscribed, handler: &Effects) {
    let (database, topics) = (database().await, topics(3).await);
    topics.add(&tier(), 3, &[]).await;
    let (orders, source) = (orders(300), Source::new(&topics));
    for order in &orders {
        handler.on(order.order_id, Act::Transient);
    }
    for (partition, orders) in orders.chunks(100).enumerate() {
        source.orders(partition as i32, orders).await;
    }
    let settings = impatient(&topics);
    let breaker = settings.breaker.clone();
    let running = Running::start(&database.pool, settings, subscribed);
    let open = async || match running.status.blocked().iter().find(|b| b.reason == metrics::BREAKER) {
        Some(_) => Ok(()),
        None => Err("closed"),
    };
    eventually(open).await;
    // Long enough for several messages to have had their three probes.
    let began = std::time::Instant::now();
    let probed = async || {
        if topics.read(&tier()).await.len() > breaker.bound(Duration::ZERO) {
            Ok(())
        } else {
            Err("no probe has counted")
        }
    };
    eventually(probed).await;
    let (published, dead) = (topics.read(&tier()).await.len(), topics.read(&dead_letter_topic()).await.len());
    // What was published before it opened may fail in its tier too, as a probe.
    let bound = breaker.bound(began.elapsed() + Duration::from_secs(5));
    assert!(
        published <= bound && dead <= bound,
        "{published} retries and {dead} dead letters, bound {bound}"
    );

    for order in &orders {
        handler.heal(order.order_id);
    }
    // What failed before the healing may be on its way still.
    let each_is_done_or_dead = async || {
        let done = effects(&database.pool).await.len();
        match topics.read(&dead_letter_topic()).await.len() {
            dead if done + dead == 300 => Ok(()),
            dead => Err(format!("{done} done and {dead} dead of 300")),
        }
    };
    eventually(each_is_done_or_dead).await;
    let blocked = async || if running.status.blocked().is_empty() { Ok(()) } else { Err("still blocked") };
    eventually(blocked).await;
    running.stop().await;
}

#[tokio::test]
async fn an_outage_publishes_no_more_than_the_breakers_bound_and_loses_nothing() {
    let handler = Effects::default();
    outage(subscription().handler(handler.clone()), &handler).await;
}

#[tokio::test]
async fn an_outage_holds_a_batch_handlers_outcomes_too() {
    let handler = Batches::default();
    outage(subscription().batch_handler(handler.clone()), &handler.0).await;
}

/// A consumer whose operations are at hand.
fn start(
    pool: &sqlx::PgPool,
    settings: Settings,
    subscribed: Subscribed,
) -> (Operations, tokio_util::sync::CancellationToken, tokio::task::JoinHandle<()>) {
    let consumer = Consumer::builder(pool.clone(), settings).subscribe(subscribed).build().unwrap();
    let (operations, stop) = (consumer.operations(), tokio_util::sync::CancellationToken::new());
    let run = consumer.run(stop.clone());
    (operations, stop, tokio::spawn(async move { run.await.unwrap() }))
}

#[tokio::test]
async fn a_bad_deployment_stops_the_line_until_an_operator_resumes_it() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (orders, source) = (orders(200), Source::new(&topics));
    for order in &orders {
        handler.on(order.order_id, Act::Permanent);
    }
    source.orders(0, &orders).await;
    let (operations, stop, task) =
        start(&database.pool, impatient(&topics), subscription().handler(handler.clone()));
    let state = || operations.subscriptions().remove(0).breaker;
    let stopped = async || if state().phase == BreakerPhase::Stopped { Ok(()) } else { Err(state()) };
    eventually(stopped).await;
    assert_eq!(state().reason.as_deref(), Some("50 messages in a row failed for good"));
    let blocked = operations.subscriptions().remove(0).blocked;
    let blocked = async || match &blocked[..] {
        [] => operations.subscriptions().remove(0).blocked.pop().map(|b| b.reason).ok_or("not blocked"),
        [blocked, ..] => Ok(blocked.reason),
    };
    assert_eq!(eventually(blocked).await, metrics::STOPPED);
    until_committed(&topics, 0, 49).await;
    assert_eq!(topics.read(&dead_letter_topic()).await.len(), 49);

    // The cause is repaired: what was held is handled, not dead-lettered for an old failure.
    for order in &orders {
        handler.heal(order.order_id);
    }
    assert!(operations.resume(OrderEvent::TOPIC, GROUP).unwrap());
    assert_eq!(until_effects(&database.pool, 151).await, ids(&orders[49..]));
    assert_eq!(topics.read(&dead_letter_topic()).await.len(), 49);
    assert!(!operations.resume(OrderEvent::TOPIC, GROUP).unwrap(), "it runs");
    assert!(operations.resume("other", GROUP).is_err());
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn noise_that_does_not_decode_stops_the_line_too() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let source = Source::new(&topics);
    for _ in 0..60 {
        source.raw(0, None, Some(b"noise"), &[]).await;
    }
    let (operations, stop, task) = start(&database.pool, impatient(&topics), subscription().handler(handler));
    let stopped = async || match operations.subscriptions().remove(0).breaker.phase {
        BreakerPhase::Stopped => Ok(()),
        phase => Err(phase),
    };
    eventually(stopped).await;
    until_committed(&topics, 0, 49).await;
    operations.resume(OrderEvent::TOPIC, GROUP).unwrap();
    until_committed(&topics, 0, 60).await;
    assert_eq!(topics.read(&dead_letter_topic()).await.len(), 60);
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn a_message_that_ends_the_process_each_time_is_dead_and_its_neighbours_are_not() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (orders, source) = (orders(3), Source::new(&topics));
    let never = Arc::new(Semaphore::new(0));
    handler.on(orders[1].order_id, Act::Gate(never));
    let messages = source.orders(0, &orders).await;
    let mut settings = settings(&topics);
    settings.session_timeout = Duration::from_secs(6);
    let mut deaths = 0;
    loop {
        let before = handler.calls(orders[1].order_id);
        let running =
            Running::start(&database.pool, settings.clone(), subscription().handler(handler.clone()));
        let reached = async || {
            let dead = inbox(&database.pool).await.get(&messages[1].as_uuid()).cloned();
            match dead {
                Some(outcome) => Ok(Some(outcome)),
                None if handler.calls(orders[1].order_id) > before => Ok(None),
                None => Err("not reached"),
            }
        };
        match eventually(reached).await {
            Some(outcome) => {
                assert_eq!(outcome, "dead");
                until_committed(&topics, 0, 3).await;
                running.stop().await;
                break;
            }
            // Dropped without a word, inside the handler, as a death leaves it.
            None => running.abort().await,
        }
        deaths += 1;
    }
    assert_eq!(deaths, 5, "two starts that did not know better, and three that did");
    let dead = topics.read(&dead_letter_topic()).await;
    assert_eq!(dead.len(), 1);
    assert_eq!(
        (dead[0].header(headers::ERROR_CODE), dead[0].header(headers::ERROR_CLASS)),
        (Some("crash"), Some("crash"))
    );
    let expected = vec![orders[0].order_id, orders[2].order_id];
    assert_eq!(sorted(effects(&database.pool).await), sorted(expected));
    let left: (i64, i64) = sqlx::query_as(
        "select (select count(*) from messaging.suspect), (select count(*) from messaging.consumer_start)",
    )
    .fetch_one(&database.pool)
    .await
    .unwrap();
    assert_eq!(left, (0, 0));
}

/// Attempts enough that nothing dies before the test has looked, however slow the machine is.
fn patient() -> RetryPolicy {
    let tiers = (300..310).map(Duration::from_millis).collect();
    RetryPolicy { tiers, ..RetryPolicy::default() }
}

/// The consumer dies in the handler until the message is dead; returns how often.
async fn until_crashed(
    pool: &sqlx::PgPool,
    topics: &Topics,
    handler: &Effects,
    order: Uuid,
    dead: usize,
) -> usize {
    let mut deaths = 0;
    loop {
        let before = handler.calls(order);
        let policy = patient();
        let subscribed = Subscription::new(OrderEvent::TOPIC, GROUP)
            .key_ordered(policy, AfterDead::Continue)
            .handler(handler.clone());
        let mut settings = settings(topics);
        settings.session_timeout = Duration::from_secs(6);
        let running = Running::start(pool, settings, subscribed);
        let reached = async || {
            if topics.read(&dead_letter_topic()).await.len() == dead {
                return Ok(true);
            }
            if handler.calls(order) > before { Ok(false) } else { Err("not reached") }
        };
        if eventually(reached).await {
            running.stop().await;
            return deaths;
        }
        running.abort().await;
        deaths += 1;
    }
}

#[tokio::test]
async fn a_parked_message_that_ends_the_process_is_dead_and_so_is_its_replay() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    topics.add(&replay_topic("", OrderEvent::TOPIC, GROUP), 1, &[]).await;
    let (orders, source) = (orders(1), Source::new(&topics));
    let order = orders[0].order_id;
    handler.on(order, Act::Transient);
    source.orders(0, &orders).await;
    let policy = patient();
    let subscribed = Subscription::new(OrderEvent::TOPIC, GROUP)
        .key_ordered(policy, AfterDead::Continue)
        .handler(handler.clone());
    let running = Running::start(&database.pool, settings(&topics), subscribed);
    until_committed(&topics, 0, 1).await;
    // It is parked, and from now on it ends the process.
    handler.on(order, Act::Gate(Arc::new(Semaphore::new(0))));
    let calls = handler.calls(order);
    eventually(async || if handler.calls(order) > calls { Ok(()) } else { Err("not drained") }).await;
    running.abort().await;
    let deaths = until_crashed(&database.pool, &topics, &handler, order, 1).await;
    assert_eq!(deaths + 1, 3);
    let dead = topics.read(&dead_letter_topic()).await.remove(0);
    assert_eq!(dead.header(headers::ERROR_CODE), Some("crash"));

    let run = Uuid::now_v7().to_string();
    let (name, id) =
        (topics.name(&replay_topic("", OrderEvent::TOPIC, GROUP)), dead.header(headers::CE_ID).unwrap());
    let list = OwnedHeaders::new()
        .insert(Header { key: headers::CE_ID, value: Some(id) })
        .insert(Header { key: headers::REPLAY_ID, value: Some(&run) });
    let (key, value) = (dead.key.as_deref().unwrap(), dead.value.as_deref().unwrap());
    let record = FutureRecord::to(&name).partition(0).key(key).payload(value).headers(list);
    topics.producer().send(record, Duration::from_secs(30)).await.unwrap();
    assert_eq!(until_crashed(&database.pool, &topics, &handler, order, 2).await, 3);
    let again = topics.read(&dead_letter_topic()).await.pop().unwrap();
    assert_eq!(
        (again.header(headers::ERROR_CODE), again.header(headers::REPLAY_ID)),
        (Some("crash"), Some(run.as_str()))
    );
    let left: i64 =
        sqlx::query_scalar("select count(*) from messaging.suspect").fetch_one(&database.pool).await.unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn an_orderly_stop_is_no_crash_of_a_parked_message() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (orders, source) = (orders(1), Source::new(&topics));
    let order = orders[0].order_id;
    handler.on(order, Act::Transient);
    source.orders(0, &orders).await;
    let policy = patient();
    let mut settings = settings(&topics);
    settings.drain_timeout = Duration::from_millis(200);
    let start = || {
        let subscribed = Subscription::new(OrderEvent::TOPIC, GROUP)
            .key_ordered(policy.clone(), AfterDead::Continue)
            .handler(handler.clone());
        Running::start(&database.pool, settings.clone(), subscribed)
    };
    let running = start();
    until_committed(&topics, 0, 1).await;
    handler.on(order, Act::Gate(Arc::new(Semaphore::new(0))));
    let mut running = Some(running);
    for _ in 0..4 {
        let calls = handler.calls(order);
        let consumer = running.take().unwrap_or_else(start);
        eventually(async || if handler.calls(order) > calls { Ok(()) } else { Err("not drained") }).await;
        consumer.stop().await;
        let begun: i64 = sqlx::query_scalar("select count(*) from messaging.suspect")
            .fetch_one(&database.pool)
            .await
            .unwrap();
        assert_eq!(begun, 0, "the process lives");
    }
    handler.heal(order);
    let running = start();
    until_effects(&database.pool, 1).await;
    assert!(topics.read(&dead_letter_topic()).await.is_empty());
    running.stop().await;
}
