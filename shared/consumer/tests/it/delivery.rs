//! From the topic to the effect: once, in order, with the offset behind it.

use std::time::{Duration, Instant};

use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer as _},
};
use waybill_consumer::{GroupProtocol, Subscription};
use waybill_event::{Event, OrderEvent};
use waybill_testkit::{Topics, eventually};

use crate::support::{
    Batches, Effects, GROUP, Running, Source, database, each, effects, ids, inbox, order, orders, settings,
    sorted, topics, until_committed, until_effects,
};

async fn every_message_once(protocol: GroupProtocol, batches: bool) {
    let (database, topics, handler) = (database().await, topics(2).await, Effects::default());
    let source = Source::new(&topics);
    let (first, second) = (orders(250), orders(30));
    source.orders(0, &first).await;
    source.orders(1, &second).await;
    let mut settings = settings(&topics);
    settings.group_protocol = protocol;
    let subscribed = if batches {
        Subscription::new(OrderEvent::TOPIC, GROUP).batch_handler(Batches(handler.clone()))
    } else {
        each(&handler)
    };
    let running = Running::start(&database.pool, settings, subscribed);
    let seen = until_effects(&database.pool, 280).await;
    assert_eq!(sorted(seen), sorted([ids(&first), ids(&second)].concat()));
    assert_eq!(inbox(&database.pool).await.len(), 280);
    assert_eq!(handler.committed().len(), 280);
    until_committed(&topics, 0, 250).await;
    until_committed(&topics, 1, 30).await;
    assert_eq!(running.status.assigned(), 2);
    running.stop().await;
}

#[tokio::test]
async fn every_message_is_handled_once_and_its_offset_committed() {
    every_message_once(GroupProtocol::Classic, false).await;
}

#[tokio::test]
async fn a_batch_handler_handles_every_message_once() {
    every_message_once(GroupProtocol::Classic, true).await;
}

#[tokio::test]
async fn every_message_is_handled_once_under_the_consumer_protocol() {
    every_message_once(GroupProtocol::Consumer, false).await;
}

#[tokio::test]
async fn messages_of_a_partition_are_handled_in_order() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    let (source, mut expected) = (Source::new(&topics), Vec::new());
    for _ in 0..5 {
        for order in orders(20) {
            source.order(0, &order, waybill_event::MessageId::new()).await;
            expected.push(order.order_id);
        }
    }
    assert_eq!(until_effects(&database.pool, 100).await, expected);
    running.stop().await;
}

/// Moves the group back, as a crash between the database's commit and the offset's does.
fn rewind(topics: &Topics) {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &topics.bootstrap)
        .set("group.id", topics.name(GROUP))
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&topics.name(OrderEvent::TOPIC), 0, Offset::Offset(0)).unwrap();
    consumer.commit(&list, CommitMode::Sync).unwrap();
}

#[tokio::test]
async fn a_redelivery_after_the_commit_has_no_second_effect() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (source, first) = (Source::new(&topics), orders(40));
    source.orders(0, &first).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    until_effects(&database.pool, 40).await;
    running.stop().await;
    rewind(&topics);
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    source.orders(0, &[order()]).await;
    until_committed(&topics, 0, 41).await;
    assert_eq!(effects(&database.pool).await.len(), 41);
    running.stop().await;
}

#[tokio::test]
async fn a_second_copy_of_a_message_has_no_second_effect() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (source, order) = (Source::new(&topics), order());
    let id = source.orders(0, std::slice::from_ref(&order)).await[0];
    source.order(0, &order, id).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    until_committed(&topics, 0, 2).await;
    source.order(0, &order, id).await;
    until_committed(&topics, 0, 3).await;
    assert_eq!(effects(&database.pool).await, [order.order_id]);
    running.stop().await;
}

#[tokio::test]
async fn a_terminated_database_session_costs_no_message_and_no_double_effect() {
    let (database, topics, handler) = (database().await, topics(2).await, Effects::default());
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    running.ready().await;
    let (source, mut expected) = (Source::new(&topics), Vec::new());
    for round in 0..6 {
        let orders = orders(50);
        source.orders(round % 2, &orders).await;
        expected.extend(ids(&orders));
        database.terminate_sessions().await;
    }
    let count = expected.len();
    until_committed(&topics, 0, 150).await;
    until_committed(&topics, 1, 150).await;
    let seen = until_effects(&database.pool, count).await;
    assert_eq!(sorted(seen), sorted(expected));
    assert!(running.status.blocked().is_empty());
    running.stop().await;
}

#[tokio::test]
async fn an_idle_consumer_stops_within_two_seconds() {
    for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
        let (database, topics, handler) = (database().await, topics(2).await, Effects::default());
        let mut settings = settings(&topics);
        settings.group_protocol = protocol;
        let running = Running::start(&database.pool, settings, each(&handler));
        running.ready().await;
        Source::new(&topics).orders(0, &orders(10)).await;
        until_effects(&database.pool, 10).await;
        let started = Instant::now();
        running.stop().await;
        assert!(started.elapsed() < Duration::from_secs(2), "{protocol:?}: {:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_missing_topic_is_waited_for() {
    let (database, topics, handler) = (database().await, Topics::none(), Effects::default());
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    topics.add(OrderEvent::TOPIC, 1, &[]).await;
    Source::new(&topics).orders(0, &orders(3)).await;
    until_effects(&database.pool, 3).await;
    running.stop().await;
}

#[tokio::test]
async fn a_run_that_is_dropped_leaves_the_group_and_hangs_nobody() {
    let (database, topics, handler) = (database().await, topics(2).await, Effects::default());
    let (source, sent) = (Source::new(&topics), orders(2));
    handler.on(sent[0].order_id, crate::support::Act::Transient);
    source.orders(0, &sent).await;
    let first = Running::start(&database.pool, settings(&topics), each(&handler));
    eventually(async || first.status.blocked().pop().ok_or("not blocked")).await;
    let status = first.status.clone();
    first.abort().await;
    assert!(status.ready().is_err());
    assert_eq!(status.assigned(), 0);
    handler.heal(sent[0].order_id);
    let second = Running::start(&database.pool, settings(&topics), each(&handler));
    until_committed(&topics, 0, 2).await;
    assert_eq!(effects(&database.pool).await, ids(&sent));
    second.stop().await;
}
