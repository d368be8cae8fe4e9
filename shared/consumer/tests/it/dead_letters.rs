//! What fails for good goes to the dead-letter topic as it came, and only then moves the offset.

use std::time::Duration;

use waybill_consumer::{RetryPolicy, Settings, Subscription, VALUE_BYTES, metrics, retry_topic};
use waybill_event::{Event, MessageId, OrderEvent, headers};
use waybill_testkit::{Topics, eventually};

use crate::{
    support::{
        Act, Effects, GROUP, Running, Source, database, dead_letter_topic, each, effects, ids, inbox, orders,
        settings, topics, until_committed, until_effects,
    },
    wire,
};

#[tokio::test]
async fn a_poison_message_goes_to_the_dead_letters_as_it_came_and_the_others_flow() {
    let (database, topics, handler) = (database().await, topics(3).await, Effects::default());
    let (orders, source) = (orders(3), Source::new(&topics));
    handler.on(orders[1].order_id, Act::Permanent);
    let id = MessageId::new().to_string();
    source.order(2, &orders[0], MessageId::new()).await;
    let value = waybill_event::encode(&orders[1]).unwrap();
    let given: [(&str, Option<&[u8]>); 5] = [
        ("twice", Some(b"1")),
        (headers::CE_ID, Some(id.as_bytes())),
        ("null", None),
        ("twice", Some(&[0xff, 0])),
        ("", Some(b"")),
    ];
    source.raw(2, Some(&[0xfe, 1]), Some(&value), &given).await;
    source.order(2, &orders[2], MessageId::new()).await;

    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    until_committed(&topics, 2, 3).await;
    assert_eq!(effects(&database.pool).await, [orders[0].order_id, orders[2].order_id]);
    let dead = topics.read(&dead_letter_topic()).await;
    assert_eq!(dead.len(), 1);
    let (dead, source) = (&dead[0], &topics.read(OrderEvent::TOPIC).await[1]);
    assert_eq!((dead.partition, &dead.key, &dead.value), (2, &source.key, &source.value));
    assert_eq!(dead.headers[..given.len()], source.headers);
    let expected = [
        (headers::ORIGIN_TOPIC, topics.name(OrderEvent::TOPIC)),
        (headers::ORIGIN_PARTITION, "2".to_owned()),
        (headers::ORIGIN_OFFSET, "1".to_owned()),
        (headers::ORIGIN_TIMESTAMP, source.timestamp.unwrap().to_string()),
        (headers::GROUP, topics.name(GROUP)),
        (headers::ATTEMPT, "1".to_owned()),
        (headers::ERROR_CODE, "handler".to_owned()),
        (headers::ERROR_CLASS, "permanent".to_owned()),
        (headers::ERROR_MESSAGE, "never, says ***@***".to_owned()),
    ];
    for (name, value) in expected {
        assert_eq!(dead.header(name), Some(value.as_str()), "{name}");
    }
    assert_eq!(dead.header(headers::FAILED_AT), dead.header(headers::FIRST_FAILED_AT));
    let id = id.parse::<MessageId>().unwrap().as_uuid();
    assert_eq!(inbox(&database.pool).await.get(&id).map(String::as_str), Some("dead"));
    running.stop().await;
}

#[tokio::test]
async fn a_dead_message_is_skipped_when_it_comes_again() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (orders, source) = (orders(1), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Permanent);
    let id = source.orders(0, &orders).await[0];
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    until_committed(&topics, 0, 1).await;
    handler.heal(orders[0].order_id);
    source.order(0, &orders[0], id).await;
    until_committed(&topics, 0, 2).await;
    assert!(effects(&database.pool).await.is_empty());
    assert_eq!(topics.read(&dead_letter_topic()).await.len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn a_panicking_message_does_not_end_the_process() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (orders, source) = (orders(3), Source::new(&topics));
    handler.on(orders[1].order_id, Act::Panic);
    source.orders(0, &orders).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    until_committed(&topics, 0, 3).await;
    assert_eq!(effects(&database.pool).await, [orders[0].order_id, orders[2].order_id]);
    let dead = topics.read(&dead_letter_topic()).await;
    assert_eq!(dead[0].header(headers::ERROR_CODE), Some("panic"));
    running.stop().await;
}

#[tokio::test]
async fn what_does_not_decode_is_dead_at_once_and_the_rest_flows() {
    let (database, topics, handler) = (database().await, Topics::none(), Effects::default());
    topics.add(OrderEvent::TOPIC, 1, &[("max.message.bytes", "2000000")]).await;
    topics.add(&dead_letter_topic(), 1, &[("max.message.bytes", "2000000")]).await;
    let (orders, source) = (orders(2), Source::new(&topics));
    let good = waybill_event::encode(&orders[0]).unwrap();
    let trailing = [&good[..], b"x"].concat();
    let huge = vec![b'x'; 1 << 20];
    let bad: [(Option<&[u8]>, &str); 6] = [
        (None, "decode_null"),
        (Some(b""), "decode_empty"),
        (Some(b"{\"order\": 1}"), "decode_unknown_frame"),
        (Some(&good[..good.len() - 1]), "decode_truncated"),
        (Some(&trailing), "decode_trailing_bytes"),
        (Some(&huge), "decode_unknown_frame"),
    ];
    source.orders(0, &orders[..1]).await;
    for (value, _) in &bad {
        source.raw(0, None, *value, &[("foreign", Some(b"1"))]).await;
    }
    wire::produce_with_header_name(&topics, OrderEvent::TOPIC, &[0xff, 0xfe], &good).await;
    source.orders(0, &orders[1..]).await;

    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    until_committed(&topics, 0, 9).await;
    assert_eq!(effects(&database.pool).await, ids(&orders));
    let (raw, dead) = wire::read_opaque(&topics, &dead_letter_topic(), bad.len() + 1).await;
    for (index, (value, code)) in bad.iter().enumerate() {
        assert_eq!(dead[index].value.as_deref(), *value, "{code}");
        assert_eq!(dead[index].header(headers::ERROR_CODE), Some(*code));
        assert_eq!(dead[index].headers[0], ("foreign".to_owned(), Some(b"1".to_vec())));
    }
    assert_eq!(raw.value.as_deref(), Some(&good[..]));
    assert!(raw.header_count > 8, "the unreadable header and ours: {}", raw.header_count);
    let inbox = inbox(&database.pool).await;
    assert_eq!(inbox.values().filter(|outcome| *outcome == "dead").count(), bad.len() + 1);
    running.stop().await;
}

#[tokio::test]
async fn a_missing_dead_letter_topic_keeps_the_offset_until_it_is_there() {
    let (database, handler) = (database().await, Effects::default());
    let topics = Topics::create(&[OrderEvent::TOPIC], 2).await;
    let (stuck, free, source) = (orders(3), orders(5), Source::new(&topics));
    handler.on(stuck[1].order_id, Act::Permanent);
    source.orders(0, &stuck).await;
    source.orders(1, &free).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    let refused = async || running.status.blocked().pop().ok_or("not blocked");
    assert_eq!(eventually(refused).await.reason, metrics::DEAD_LETTER);
    until_committed(&topics, 1, 5).await;
    assert_eq!(topics.committed(GROUP, OrderEvent::TOPIC, 0).await, None);
    topics.add(&dead_letter_topic(), 2, &[]).await;
    until_committed(&topics, 0, 3).await;
    assert_eq!(topics.read(&dead_letter_topic()).await.len(), 1);
    assert!(running.status.blocked().is_empty());
    running.stop().await;
}

#[tokio::test]
async fn no_batch_behind_a_dead_letter_moves_the_offset_before_it_is_there() {
    let (database, handler) = (database().await, Effects::default());
    let topics = Topics::create(&[OrderEvent::TOPIC], 1).await;
    let (orders, source) = (orders(4), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Permanent);
    source.orders(0, &orders[..1]).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    eventually(async || (handler.calls(orders[0].order_id) > 0).then_some(()).ok_or("not called")).await;
    // A batch of its own, and clean.
    source.orders(0, &orders[1..2]).await;
    until_effects(&database.pool, 1).await;
    // Commits all that may be committed.
    running.stop().await;
    assert_eq!(topics.committed(GROUP, OrderEvent::TOPIC, 0).await, None);
    topics.add(&dead_letter_topic(), 1, &[]).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    source.orders(0, &orders[2..]).await;
    until_committed(&topics, 0, 4).await;
    assert_eq!(effects(&database.pool).await, ids(&orders[1..]));
    assert_eq!(topics.read(&dead_letter_topic()).await.len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn a_refusing_dead_letter_topic_shows_also_while_the_next_batch_ends() {
    let (database, handler) = (database().await, Effects::default());
    let topics = Topics::create(&[OrderEvent::TOPIC], 1).await;
    let (orders, source) = (orders(2), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Permanent);
    handler.on(orders[1].order_id, Act::Permanent);
    source.orders(0, &orders[..1]).await;
    let mut settings = settings(&topics);
    // Seldom tried, so that the next refusal does not cover it up.
    settings.retry_min = Duration::from_secs(20);
    settings.retry_max = Duration::from_secs(20);
    let running = Running::start(&database.pool, settings, each(&handler));
    let shown = || running.status.blocked().pop().map(|blocked| blocked.reason);
    eventually(async || shown().filter(|reason| *reason == metrics::DEAD_LETTER).ok_or("not blocked")).await;
    source.orders(0, &orders[1..]).await;
    let mut after = 0;
    while after < 100 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        after += handler.calls(orders[1].order_id);
        assert_eq!(shown(), Some(metrics::DEAD_LETTER));
    }
    running.stop().await;
}

/// Neither has a row yet on which the second could be skipped.
#[tokio::test]
async fn two_copies_that_are_gathered_together_are_published_once() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let delay = Duration::from_millis(500);
    topics.add(&retry_topic("", OrderEvent::TOPIC, GROUP, delay), 1, &[]).await;
    let (orders, source) = (orders(3), Source::new(&topics));
    handler.on(orders[0].order_id, Act::Permanent);
    handler.on(orders[1].order_id, Act::Transient);
    let ids: Vec<_> = (0..2).map(|_| MessageId::new()).collect();
    let unreadable = MessageId::new();
    for _ in 0..2 {
        source.order(0, &orders[0], ids[0]).await;
        source.order(0, &orders[1], ids[1]).await;
        let id = unreadable.to_string();
        source.raw(0, None, Some(b"no event"), &[(headers::CE_ID, Some(id.as_bytes()))]).await;
    }
    source.order(0, &orders[2], MessageId::new()).await;
    // Each record a batch of its own.
    let settings = Settings { batch_size: 1, ..settings(&topics) };
    let policy = RetryPolicy { tiers: vec![delay], ..RetryPolicy::default() };
    let subscription = Subscription::new(OrderEvent::TOPIC, GROUP).retry(policy);
    let running = Running::start(&database.pool, settings, subscription.handler(handler.clone()));
    until_committed(&topics, 0, 7).await;
    let (known, dead) = (inbox(&database.pool).await, topics.read(&dead_letter_topic()).await);
    let count = |id: &MessageId| {
        let id = id.to_string();
        dead.iter().filter(|dead| dead.header(headers::CE_ID) == Some(id.as_str())).count()
    };
    assert_eq!((count(&ids[0]), count(&unreadable)), (1, 1));
    assert_eq!([ids[0], unreadable].map(|id| known[&id.as_uuid()].clone()), ["dead", "dead"]);
    assert_eq!(topics.read(&retry_topic("", OrderEvent::TOPIC, GROUP, delay)).await.len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn a_stop_publishes_what_was_still_being_gathered() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let orders = orders(3);
    handler.on(orders[1].order_id, Act::Permanent);
    let ids_of = Source::new(&topics).orders(0, &orders).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    until_effects(&database.pool, 2).await;
    running.stop().await;
    assert_eq!(topics.read(&dead_letter_topic()).await.len(), 1);
    assert_eq!(inbox(&database.pool).await[&ids_of[1].as_uuid()], "dead");
    assert_eq!(topics.committed(GROUP, OrderEvent::TOPIC, 0).await, Some(3));
}

#[tokio::test]
async fn a_record_too_large_for_the_dead_letters_leaves_a_pointer() {
    let (database, handler) = (database().await, Effects::default());
    let topics = Topics::create(&[OrderEvent::TOPIC], 1).await;
    topics.add(&dead_letter_topic(), 1, &[("max.message.bytes", "2000")]).await;
    let source = Source::new(&topics);
    let foreign = vec![b'h'; 3_000];
    source.raw(0, Some(b"k"), Some(&[b'x'; 5_000]), &[("small", Some(b"1"))]).await;
    source.raw(0, Some(b"k"), Some(b"short"), &[("large", Some(&foreign))]).await;
    for _ in 2..9 {
        source.raw(0, Some(b"k"), Some(&[b'y'; 900]), &[("small", Some(b"1"))]).await;
    }
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    until_committed(&topics, 0, 9).await;
    let mut dead = topics.read(&dead_letter_topic()).await;
    // One that was refused at first may end up behind its successor.
    dead.sort_by_key(|dead| dead.header(headers::ORIGIN_OFFSET).unwrap().to_owned());
    assert_eq!((dead[0].value.as_deref(), dead[0].header(VALUE_BYTES)), (None, Some("5000")));
    assert_eq!(dead[0].header("small"), Some("1"));
    for neighbour in &dead[2..] {
        assert_eq!(
            neighbour.value.as_deref(),
            Some(&[b'y'; 900][..]),
            "the broker refuses batches, not records"
        );
    }
    assert_eq!((dead[1].header("large"), dead[1].header(headers::ORIGIN_OFFSET)), (None, Some("1")));
    running.stop().await;
}

#[tokio::test]
async fn a_dead_letter_topic_with_fewer_partitions_still_takes_the_record() {
    let (database, handler) = (database().await, Effects::default());
    let topics = Topics::create(&[OrderEvent::TOPIC], 4).await;
    topics.add(&dead_letter_topic(), 1, &[]).await;
    let source = Source::new(&topics);
    source.raw(3, Some(b"k"), None, &[]).await;
    source.orders(3, &orders(1)).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    until_effects(&database.pool, 1).await;
    until_committed(&topics, 3, 2).await;
    assert_eq!(topics.read(&dead_letter_topic()).await[0].header(headers::ORIGIN_PARTITION), Some("3"));
    running.stop().await;
}
