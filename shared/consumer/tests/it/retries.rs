//! Transient failures: in place, without limit, and nothing passes.

use std::time::Duration;

use waybill_consumer::metrics;
use waybill_event::MessageId;
use waybill_testkit::eventually;

use crate::support::{
    Act, Effects, GROUP, Running, Source, database, each, effects, ids, inbox, orders, settings, topics,
    until_committed, until_effects,
};

#[tokio::test]
async fn nothing_passes_a_transient_failure_and_other_partitions_flow() {
    let (database, topics, handler) = (database().await, topics(2).await, Effects::default());
    let (stuck, free, source) = (orders(5), orders(20), Source::new(&topics));
    handler.on(stuck[2].order_id, Act::Transient);
    source.orders(0, &stuck).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    source.orders(1, &free).await;
    until_effects(&database.pool, 22).await;
    until_committed(&topics, 1, 20).await;
    // What is before it is finished, and its offset may move.
    until_committed(&topics, 0, 2).await;
    let blocked = eventually(async || running.status.blocked().pop().ok_or("not blocked")).await;
    assert_eq!((blocked.group, blocked.partition), (topics.name(GROUP), 0));
    assert_eq!((blocked.reason, blocked.error.as_str()), (metrics::TRANSIENT, "not now"));
    let several = async || {
        let calls = handler.calls(stuck[2].order_id);
        if calls > 5 { Ok(()) } else { Err(calls) }
    };
    eventually(several).await;
    assert_eq!(effects(&database.pool).await.len(), 22);
    assert_eq!(handler.calls(stuck[3].order_id) + handler.calls(stuck[4].order_id), 0);

    handler.heal(stuck[2].order_id);
    until_committed(&topics, 0, 5).await;
    let order: Vec<_> =
        effects(&database.pool).await.into_iter().filter(|order| ids(&stuck).contains(order)).collect();
    assert_eq!(order, ids(&stuck));
    eventually(async || if running.status.blocked().is_empty() { Ok(()) } else { Err("blocked") }).await;
    running.stop().await;
}

#[tokio::test]
async fn a_retry_in_progress_stops_at_once_and_leaves_no_inbox_row() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (stuck, source) = (orders(1), Source::new(&topics));
    handler.on(stuck[0].order_id, Act::Transient);
    source.orders(0, &stuck).await;
    let mut settings = settings(&topics);
    settings.retry_min = Duration::from_secs(60);
    settings.retry_max = Duration::from_secs(60);
    let running = Running::start(&database.pool, settings, each(&handler));
    eventually(async || running.status.blocked().pop().ok_or("not blocked")).await;
    let started = std::time::Instant::now();
    running.stop().await;
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(inbox(&database.pool).await.is_empty());
    assert_eq!(topics.committed(GROUP, "orders.v1", 0).await, None);
}

#[tokio::test]
async fn an_unknown_schema_is_waited_for_and_then_dead() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (orders, source) = (orders(2), Source::new(&topics));
    source.order(0, &orders[0], MessageId::new()).await;
    let mut unknown = waybill_event::encode(&orders[1]).unwrap();
    unknown[2..10].fill(7);
    source.raw(0, Some(b"k"), Some(&unknown), &[]).await;
    source.raw(0, Some(b"k"), Some(&unknown), &[]).await;
    source.order(0, &orders[1], MessageId::new()).await;
    let mut settings = settings(&topics);
    settings.schema_patience = Duration::from_secs(2);
    let running = Running::start(&database.pool, settings, each(&handler));
    let blocked = eventually(async || running.status.blocked().pop().ok_or("not blocked")).await;
    assert_eq!(blocked.reason, metrics::UNKNOWN_SCHEMA);
    assert_eq!(effects(&database.pool).await, [orders[0].order_id], "nothing may pass it");
    until_committed(&topics, 0, 4).await;
    assert_eq!(effects(&database.pool).await, ids(&orders));
    let dead = topics.read(&crate::support::dead_letter_topic()).await;
    assert_eq!(dead.len(), 2);
    assert_eq!(dead[1].header("waybill-error-code"), Some("decode_unknown_schema"));
    running.stop().await;
}

#[tokio::test]
async fn a_database_that_refuses_stops_consumption_and_costs_no_attempt() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (sent, source) = (orders(3), Source::new(&topics));
    let rename = |from: &'static str, to: &'static str| {
        let statement = sqlx::AssertSqlSafe(format!("alter table messaging.{from} rename to {to}"));
        sqlx::raw_sql(statement).execute(&database.pool)
    };
    rename("processed_message", "away").await.unwrap();
    source.orders(0, &sent).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    let blocked = eventually(async || running.status.blocked().pop().ok_or("not blocked")).await;
    assert_eq!(blocked.reason, metrics::DATABASE);
    assert_eq!(topics.committed(GROUP, "orders.v1", 0).await, None);
    rename("away", "processed_message").await.unwrap();
    until_committed(&topics, 0, 3).await;
    assert_eq!(effects(&database.pool).await, ids(&sent));
    assert!(sent.iter().all(|order| handler.calls(order.order_id) == 1));
    assert!(topics.read(&crate::support::dead_letter_topic()).await.is_empty());
    running.stop().await;
}
