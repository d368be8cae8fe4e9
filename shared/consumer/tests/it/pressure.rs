//! Slow handlers: buffers stay bounded, polling goes on, nothing is skipped.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;
use waybill_consumer::{GroupProtocol, Subscription};
use waybill_event::{Event, OrderEvent};
use waybill_testkit::{Topics, eventually};

use crate::support::{
    Act, Batches, Effects, GROUP, Running, Source, database, each, effects, ids, orders, settings, topics,
    until_committed, until_effects,
};

#[tokio::test]
async fn a_full_buffer_pauses_its_partition_and_loses_nothing() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (source, gate, sent) = (Source::new(&topics), Arc::new(Semaphore::new(0)), orders(400));
    for order in sent.iter().step_by(50) {
        handler.on(order.order_id, Act::Gate(Arc::clone(&gate)));
    }
    source.orders(0, &sent).await;
    let mut settings = settings(&topics);
    settings.batch_size = 10;
    settings.buffer_records = 20;
    let running = Running::start(&database.pool, settings, each(&handler));
    for _ in 0..8 {
        eventually(async || if running.status.paused() == 1 { Ok(()) } else { Err("not paused") }).await;
        gate.add_permits(1);
    }
    until_committed(&topics, 0, 400).await;
    assert_eq!(running.status.paused(), 0);
    assert_eq!(effects(&database.pool).await, ids(&sent), "in order, no gap, none twice");
    running.stop().await;
}

/// The client's thread sleeps for up to a second when every partition of its broker is paused, and a resume alone does
/// not wake it: thirty pauses must not take thirty seconds.
#[tokio::test]
async fn a_partition_alone_is_not_slowed_by_its_pauses() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (source, sent) = (Source::new(&topics), orders(4_000));
    source.orders(0, &sent).await;
    let mut settings = settings(&topics);
    (settings.batch_size, settings.buffer_records) = (50, 100);
    let batches = Subscription::new(OrderEvent::TOPIC, GROUP).batch_handler(Batches(handler));
    let running = Running::start(&database.pool, settings, batches);
    until_effects(&database.pool, 1).await;
    let started = Instant::now();
    assert_eq!(until_effects(&database.pool, 4_000).await, ids(&sent));
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    running.stop().await;
}

/// Whatever lies on the topic, a partition holds its buffer's bytes and what was on its way when it was paused.
#[tokio::test]
async fn large_values_are_bounded_by_bytes_and_not_by_count() {
    const MIB: usize = 1 << 20;
    let (database, topics, handler) = (database().await, Topics::none(), Effects::default());
    topics.add(OrderEvent::TOPIC, 1, &[("max.message.bytes", "1100000")]).await;
    let (source, gate, mut sent) = (Source::new(&topics), Arc::new(Semaphore::new(0)), orders(40));
    for order in &mut sent {
        order.reason = Some("x".repeat(MIB - 1_000));
    }
    handler.on(sent[0].order_id, Act::Gate(Arc::clone(&gate)));
    source.orders(0, &sent).await;
    let mut settings = settings(&topics);
    settings.buffer_bytes = 4 * MIB;
    settings.idle_in_transaction = Duration::from_secs(60);
    let running = Running::start(&database.pool, settings, each(&handler));
    eventually(async || if running.status.paused() == 1 { Ok(()) } else { Err("not paused") }).await;
    let (records, bytes) = running.status.buffered();
    assert!(records <= 6 && bytes <= 6 * MIB, "{records} records, {bytes} bytes");
    gate.add_permits(1);
    let mut most = 0;
    eventually(async || {
        most = most.max(running.status.buffered().1);
        let done = effects(&database.pool).await.len();
        if done == 40 { Ok(()) } else { Err(done) }
    })
    .await;
    assert!(most <= 6 * MIB, "{most} bytes");
    until_committed(&topics, 0, 40).await;
    assert_eq!(effects(&database.pool).await, ids(&sent), "in order, no gap, none twice");
    assert_eq!(running.status.buffered(), (0, 0));
    running.stop().await;
}

async fn a_slow_handler_keeps_its_partition(protocol: GroupProtocol) {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (source, gate, sent) = (Source::new(&topics), Arc::new(Semaphore::new(0)), orders(3));
    handler.on(sent[0].order_id, Act::Gate(Arc::clone(&gate)));
    source.orders(0, &sent).await;
    let mut settings = settings(&topics);
    settings.group_protocol = protocol;
    settings.session_timeout = Duration::from_secs(6);
    settings.heartbeat = Duration::from_secs(1);
    settings.max_poll_interval = Duration::from_secs(6);
    settings.drain_timeout = Duration::from_secs(2);
    // The transaction waits for the handler, not for a statement.
    settings.idle_in_transaction = Duration::from_secs(60);
    let running = Running::start(&database.pool, settings, each(&handler));
    eventually(async || if handler.calls(sent[0].order_id) == 1 { Ok(()) } else { Err("not called") }).await;
    // The one wait that is the subject: longer than the interval.
    tokio::time::sleep(Duration::from_secs(8)).await;
    gate.add_permits(1);
    until_committed(&topics, 0, 3).await;
    assert_eq!(handler.calls(sent[0].order_id), 1, "a rebalance would have delivered it again");
    assert_eq!(effects(&database.pool).await, ids(&sent));
    running.stop().await;
}

#[tokio::test]
async fn a_handler_slower_than_the_poll_interval_keeps_its_partition() {
    a_slow_handler_keeps_its_partition(GroupProtocol::Classic).await;
}

#[tokio::test]
async fn a_handler_slower_than_the_poll_interval_keeps_its_partition_under_the_consumer_protocol() {
    a_slow_handler_keeps_its_partition(GroupProtocol::Consumer).await;
}
