//! Pitfalls of other consumers that no other file is about. The numbers are the README's.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use rdkafka::{
    ClientConfig,
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, Producer as _},
};
use waybill_consumer::{RetryPolicy, Subscribed, Subscription, metrics, retry_topic};
use waybill_event::{Event, MessageId, OrderEvent, headers, time::ce_time};
use waybill_testkit::{Topics, eventually};

use crate::support::{
    Act, Effects, GROUP, Running, Source, database, dead_letter_topic, each, effects, ids, orders, settings,
    topics, until_committed, until_effects,
};

const TIER: Duration = Duration::from_millis(200);

fn tier() -> String {
    retry_topic("", OrderEvent::TOPIC, GROUP, TIER)
}

fn retrying(handler: &Effects) -> Subscribed {
    let policy = RetryPolicy { tiers: vec![TIER], ..RetryPolicy::default() };
    Subscription::new(OrderEvent::TOPIC, GROUP).retry(policy).handler(handler.clone())
}

/// #15: the owner's last word is acknowledged before it gives the partition up, so the next owner says nothing.
#[tokio::test]
async fn a_message_that_dies_while_its_partition_is_revoked_leaves_one_dead_letter() {
    let (database, topics, handler) = (database().await, topics(4).await, Effects::default());
    let (orders, source) = (orders(4), Source::new(&topics));
    for (partition, order) in orders.iter().enumerate() {
        // Long enough for a second member to join; a volatile zero, or the planner would divide before the sleep.
        let slow = "select 1 / (0 * length(clock_timestamp()::text)) from pg_sleep(6)";
        handler.on(order.order_id, Act::Sql(slow));
        source.order(partition as i32, order, MessageId::new()).await;
    }
    let first = Running::start(&database.pool, settings(&topics), each(&handler));
    let began = async || {
        let waiting = orders.iter().filter(|order| handler.calls(order.order_id) == 0).count();
        if waiting == 0 { Ok(()) } else { Err(waiting) }
    };
    eventually(began).await;
    let second = Running::start(&database.pool, settings(&topics), each(&handler));
    eventually(async || if second.status.assigned() > 0 { Ok(()) } else { Err("nothing assigned") }).await;
    first.stop().await;
    for partition in 0..4 {
        until_committed(&topics, partition, 1).await;
    }
    second.stop().await;
    assert_eq!(topics.read(&dead_letter_topic()).await.len(), 4);
    assert!(orders.iter().all(|order| handler.calls(order.order_id) == 1));
}

/// #30: a dead letter that somebody copies to the source, and not to the replay topic, brings its old times along.
#[tokio::test]
async fn a_first_failure_that_a_foreigner_claims_does_not_use_up_the_deadline() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    topics.add(&tier(), 1, &[]).await;
    let order = orders(1).remove(0);
    handler.on(order.order_id, Act::Transient);
    let (id, value) = (MessageId::new().to_string(), waybill_event::encode(&order).unwrap());
    let long_ago = ce_time(Utc::now() - TimeDelta::days(1));
    let list = [
        (headers::CE_ID, Some(id.as_bytes())),
        (headers::ATTEMPT, Some(b"5".as_slice())),
        (headers::FIRST_FAILED_AT, Some(long_ago.as_bytes())),
    ];
    Source::new(&topics).raw(0, Some(b"k"), Some(&value), &list).await;
    let running = Running::start(&database.pool, settings(&topics), retrying(&handler));
    let retry = eventually(async || topics.read(&tier()).await.pop().ok_or("no retry")).await;
    assert_eq!(retry.header(headers::ATTEMPT), Some("1"));
    assert_eq!(retry.header(headers::FIRST_FAILED_AT), retry.header(headers::FAILED_AT));
    running.stop().await;
}

/// #41: a copy with its original's time would be deleted by retention at once, or refused.
#[tokio::test]
async fn what_an_old_record_becomes_is_new() {
    let (database, topics, handler) = (database().await, Topics::none(), Effects::default());
    topics.add(OrderEvent::TOPIC, 1, &[("retention.ms", "-1")]).await;
    topics.add(&tier(), 1, &[]).await;
    topics.add(&dead_letter_topic(), 1, &[]).await;
    let order = orders(1).remove(0);
    handler.on(order.order_id, Act::Transient);
    let (now, name) = (Utc::now().timestamp_millis(), topics.name(OrderEvent::TOPIC));
    let old = now - 30 * 86_400_000;
    let (id, value) = (MessageId::new().to_string(), waybill_event::encode(&order).unwrap());
    let list = OwnedHeaders::new().insert(Header { key: headers::CE_ID, value: Some(&id) });
    let record = FutureRecord::to(&name).key("k").payload(&value).headers(list).timestamp(old);
    topics.producer().send(record, Duration::from_secs(30)).await.unwrap();
    let running = Running::start(&database.pool, settings(&topics), retrying(&handler));
    let dead = eventually(async || topics.read(&dead_letter_topic()).await.pop().ok_or("not dead")).await;
    let retry = topics.read(&tier()).await.remove(0);
    for copy in [retry, dead] {
        assert!(copy.timestamp.unwrap() >= now - 1_000, "{copy:?}");
        assert_eq!(copy.header(headers::ORIGIN_TIMESTAMP), Some(old.to_string().as_str()));
    }
    running.stop().await;
}

/// #42: a topic that the pattern finds later is read from its beginning, not from where it ended then.
#[tokio::test]
async fn the_first_record_of_a_retry_topic_that_comes_later_is_consumed() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (orders, source) = (orders(1), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Transient);
    source.orders(0, &orders).await;
    let mut settings = settings(&topics);
    settings.dead_letter_timeout = Duration::from_secs(2);
    let running = Running::start(&database.pool, settings, retrying(&handler));
    let blocked = eventually(async || running.status.blocked().pop().ok_or("not blocked")).await;
    assert_eq!(blocked.reason, metrics::RETRY_TOPIC);
    handler.heal(orders[0].order_id);
    topics.add(&tier(), 1, &[]).await;
    assert_eq!(until_effects(&database.pool, 1).await, ids(&orders));
    running.stop().await;
}

/// #43: offsets that transactions use up are no gap to stop at, and what was aborted has no effect.
#[tokio::test]
async fn gaps_between_offsets_hold_up_nothing() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let mut config = ClientConfig::new();
    config.extend(topics.client_settings());
    let producer: FutureProducer = config.set("transactional.id", topics.name("tx")).create().unwrap();
    let patience = Duration::from_secs(30);
    producer.init_transactions(patience).unwrap();
    let (orders, name) = (orders(7), topics.name(OrderEvent::TOPIC));
    for (part, commits) in [(&orders[..3], true), (&orders[3..5], false), (&orders[5..], true)] {
        producer.begin_transaction().unwrap();
        for order in part {
            let (key, value) = (order.key(), waybill_event::encode(order).unwrap());
            let record = FutureRecord::to(&name).key(&key).payload(&value);
            producer.send(record, patience).await.unwrap();
        }
        if commits {
            producer.commit_transaction(patience).unwrap();
        } else {
            producer.abort_transaction(patience).unwrap();
        }
    }
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    // Records 0 to 2, 4, 5, 7 and 8; a marker behind each transaction.
    until_committed(&topics, 0, 9).await;
    let expected: Vec<_> = [&orders[..3], &orders[5..]].concat();
    assert_eq!(effects(&database.pool).await, ids(&expected));
    assert_eq!(running.status.blocked(), []);
    running.stop().await;
}
