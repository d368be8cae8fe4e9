//! Foreign and damaged records on the real topic: each is handled or dead, and none holds up what is behind it.

use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};
use waybill_consumer::Subscription;
use waybill_event::{Event, MessageId, OrderEvent, headers};

use crate::{
    support::{
        Batches, Effects, GROUP, Running, Source, database, dead_letter_topic, each, effects, ids, inbox,
        orders, settings, topics, until_committed,
    },
    wire,
};

const MANY: usize = 5_000;

#[tokio::test]
async fn thousands_of_headers_pass_and_reach_the_dead_letters_as_they_came() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (sent, source) = (orders(1), Source::new(&topics));
    let (names, id) =
        ((0..MANY).map(|n| format!("h{}", n % 7)).collect::<Vec<_>>(), MessageId::new().to_string());
    let mut given: Vec<(&str, Option<&[u8]>)> = names
        .iter()
        .enumerate()
        .map(|(n, name)| (name.as_str(), (n % 3 > 0).then_some(&b"\xff\0x"[..])))
        .collect();
    given.push((headers::CE_ID, Some(id.as_bytes())));
    let good = waybill_event::encode(&sent[0]).unwrap();
    source.raw(0, Some(&[0xff, 0xfe]), Some(&good), &given).await;
    source.raw(0, Some(&[0xff, 0xfe]), Some(b"bad"), &given[..MANY]).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    until_committed(&topics, 0, 2).await;
    assert_eq!(effects(&database.pool).await, ids(&sent));
    let (dead, source) = (topics.read(&dead_letter_topic()).await, topics.read(OrderEvent::TOPIC).await);
    assert_eq!(dead[0].key.as_deref(), Some(&[0xff, 0xfe][..]));
    assert_eq!(dead[0].headers[..MANY], source[1].headers);
    running.stop().await;
}

/// Values from random bytes to damaged events, keys and headers of all kinds; every fifth record is a good one.
#[tokio::test]
async fn noise_does_not_hold_up_what_is_behind_it() {
    const RECORDS: usize = 400;
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (sent, source, mut random) = (orders(RECORDS / 5), Source::new(&topics), StdRng::seed_from_u64(5));
    let names = [headers::CE_ID, headers::CE_TYPE, headers::TRACEPARENT, headers::ORIGIN_TOPIC, "", "é", "x"];
    for number in 0..RECORDS {
        let good = &sent[number / 5];
        if number % 5 == 0 {
            source.order(0, good, MessageId::new()).await;
            continue;
        }
        let mut value = waybill_event::encode(good).unwrap();
        match random.random_range(0..4) {
            0 => value.truncate(random.random_range(0..value.len())),
            1 => value.push(random.random()),
            2 => value[..2].fill(random.random_range(0xc4..=0xff)),
            _ => {
                value = vec![0; random.random_range(1..300)];
                random.fill_bytes(&mut value);
                value[0] = 1;
            }
        }
        let mut bytes = vec![0; random.random_range(0..40)];
        random.fill_bytes(&mut bytes);
        let list: Vec<_> = (0..random.random_range(0..6))
            .map(|_| {
                (names[random.random_range(0..names.len())], random.random_bool(0.8).then_some(&bytes[..]))
            })
            .collect();
        let key = random.random_bool(0.5).then_some(&bytes[..]);
        source.raw(0, key, random.random_bool(0.9).then_some(&value[..]), &list).await;
    }
    wire::produce_with_header_name(&topics, OrderEvent::TOPIC, &[0xff], b"x").await;
    let batches = Subscription::new(OrderEvent::TOPIC, GROUP).batch_handler(Batches(handler));
    let running = Running::start(&database.pool, settings(&topics), batches);
    until_committed(&topics, 0, RECORDS as i64 + 1).await;
    assert_eq!(effects(&database.pool).await, ids(&sent));
    let dead = inbox(&database.pool).await.into_values().filter(|outcome| outcome == "dead").count();
    assert!(dead > RECORDS / 2, "{dead} dead");
    running.stop().await;
}
