//! Slow handlers: buffers stay bounded, polling goes on, nothing is skipped.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use waybill_testkit::eventually;

use crate::support::{
    Act, Effects, Running, Source, database, each, effects, ids, orders, settings, topics, until_committed,
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

#[tokio::test]
async fn a_handler_slower_than_the_poll_interval_keeps_its_partition() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (source, gate, sent) = (Source::new(&topics), Arc::new(Semaphore::new(0)), orders(3));
    handler.on(sent[0].order_id, Act::Gate(Arc::clone(&gate)));
    source.orders(0, &sent).await;
    let mut settings = settings(&topics);
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
