//! Members come and go: no message is lost and none has a second effect.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use waybill_consumer::GroupProtocol;
use waybill_testkit::eventually;

use crate::support::{
    Act, Effects, Running, Source, database, each, effects, ids, orders, settings, sorted, topics,
    until_committed, until_effects,
};

async fn members_come_and_go(protocol: GroupProtocol) {
    let (database, topics, handler) = (database().await, topics(4).await, Effects::default());
    let (source, mut expected) = (Source::new(&topics), Vec::new());
    let start = || {
        let mut settings = settings(&topics);
        settings.group_protocol = protocol;
        Running::start(&database.pool, settings, each(&handler))
    };
    let mut produce = async |rounds: usize| {
        for _ in 0..rounds {
            for partition in 0..4 {
                let orders = orders(10);
                source.orders(partition, &orders).await;
                expected.extend(ids(&orders));
            }
        }
        expected.len()
    };
    let first = start();
    first.ready().await;
    produce(10).await;
    let second = start();
    let shared = async || match (first.status.assigned(), second.status.assigned()) {
        (2, 2) => Ok(()),
        other => Err(other),
    };
    let (_, _) = tokio::join!(eventually(shared), produce(10));
    produce(5).await;
    first.stop().await;
    let count = produce(5).await;
    until_effects(&database.pool, count).await;
    for partition in 0..4 {
        until_committed(&topics, partition, 300).await;
    }
    assert_eq!(second.status.assigned(), 4);
    second.stop().await;
    assert_eq!(sorted(effects(&database.pool).await), sorted(expected));
}

#[tokio::test]
async fn a_second_member_takes_over_half_and_then_all() {
    members_come_and_go(GroupProtocol::Classic).await;
}

#[tokio::test]
async fn a_second_member_takes_over_half_and_then_all_under_the_consumer_protocol() {
    members_come_and_go(GroupProtocol::Consumer).await;
}

/// The batch under way holds its partition until it has ended; its offset is committed before the partition goes.
#[tokio::test]
async fn a_revoked_partition_is_given_up_when_its_batch_has_ended() {
    let (database, topics, handler) = (database().await, topics(2).await, Effects::default());
    let (source, gate, stuck) = (Source::new(&topics), Arc::new(Semaphore::new(0)), orders(2));
    for (partition, order) in stuck.iter().enumerate() {
        handler.on(order.order_id, Act::Gate(Arc::clone(&gate)));
        source.orders(partition as i32, std::slice::from_ref(order)).await;
    }
    let first = Running::start(&database.pool, settings(&topics), each(&handler));
    let both = async || {
        let calls: usize = stuck.iter().map(|order| handler.calls(order.order_id)).sum();
        if calls == 2 { Ok(()) } else { Err(calls) }
    };
    eventually(both).await;
    let second = Running::start(&database.pool, settings(&topics), each(&handler));
    let half = async || {
        let assigned = first.status.assigned();
        // The revoked one leaves the status only after its batch.
        gate.add_permits(usize::from(assigned == 2));
        if assigned == 1 { Ok(()) } else { Err(assigned) }
    };
    second.ready().await;
    eventually(half).await;
    // For the one that stays: the revoked one may have gone with the first permit.
    gate.add_permits(2);
    until_committed(&topics, 0, 1).await;
    until_committed(&topics, 1, 1).await;
    assert_eq!(stuck.iter().map(|order| handler.calls(order.order_id)).sum::<usize>(), 2);
    first.stop().await;
    second.stop().await;
}

/// A batch that does not end in time is rolled back, and handled by the next owner.
#[tokio::test]
async fn a_batch_that_outlives_the_drain_is_rolled_back() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (source, gate, stuck) = (Source::new(&topics), Arc::new(Semaphore::new(0)), orders(1));
    handler.on(stuck[0].order_id, Act::Gate(Arc::clone(&gate)));
    source.orders(0, &stuck).await;
    let mut settings = settings(&topics);
    settings.drain_timeout = Duration::from_millis(200);
    let first = Running::start(&database.pool, settings.clone(), each(&handler));
    let called = async || if handler.calls(stuck[0].order_id) == 1 { Ok(()) } else { Err("not called") };
    eventually(called).await;
    first.stop().await;
    assert!(effects(&database.pool).await.is_empty());
    handler.heal(stuck[0].order_id);
    let second = Running::start(&database.pool, settings, each(&handler));
    until_committed(&topics, 0, 1).await;
    assert_eq!(effects(&database.pool).await, ids(&stuck));
    second.stop().await;
}

/// A pause must neither outlive its assignment nor be forgotten: with tiny buffers every partition is paused and
/// resumed all the time while members come and go.
#[tokio::test]
async fn paused_partitions_change_hands_without_loss_or_standstill() {
    let (database, topics, handler) = (database().await, topics(4).await, Effects::default());
    let (source, mut expected) = (Source::new(&topics), Vec::new());
    let start = || {
        let mut settings = settings(&topics);
        (settings.batch_size, settings.buffer_records) = (5, 10);
        Running::start(&database.pool, settings, each(&handler))
    };
    let first = start();
    first.ready().await;
    for _ in 0..3 {
        for partition in 0..4 {
            let orders = orders(150);
            expected.extend(ids(&orders));
            source.orders(partition, &orders).await;
        }
        let second = start();
        let shared = async || match (first.status.assigned(), second.status.assigned()) {
            (2, 2) => Ok(()),
            other => Err(other),
        };
        eventually(shared).await;
        second.stop().await;
    }
    until_effects(&database.pool, expected.len()).await;
    for partition in 0..4 {
        until_committed(&topics, partition, 450).await;
    }
    first.stop().await;
    assert_eq!(sorted(effects(&database.pool).await), sorted(expected));
}
