//! What batches do.

use std::sync::Arc;

use uuid::Uuid;
use waybill_event::{Header, Headers, MessageId};

use super::support::{Act, GROUP, Scene, TOPIC, message, messages, record};
use crate::{
    Message,
    park::{Key, Opening, Parcel, Parks, park_failed, store},
    record::{Record, RecordHeaders},
    store::Lease,
};

#[tokio::test]
async fn a_failed_message_parks_its_key_and_the_rest_of_the_batch_commits() {
    let scene = Scene::new().await;
    let (mut a, b) = (messages(b"a", 3), message(Some(b"b"), 9));
    scene.handler.on(a[1].id, Act::Transient);
    a.push(b);
    scene.deliver(&a).await;
    assert_eq!(scene.effects().await, [1, 9]);
    assert_eq!(scene.parked().await, (1, 2));
    assert!(scene.inbox(a[1].id).await.is_none() && scene.inbox(a[2].id).await.is_none());
    assert_eq!(scene.handler.calls(a[2].id), 0);

    // Delivered again: what is parked is dropped, what is done is skipped, what is new joins.
    a.push(message(Some(b"a"), 4));
    scene.deliver(&a).await;
    assert_eq!((scene.effects().await, scene.parked().await), (vec![1, 9], (1, 3)));
    assert_eq!(scene.handler.calls(a[1].id), 1);

    scene.handler.heal(a[1].id);
    let draining = scene.drain();
    scene.until_effects(&[1, 9, 2, 3, 4]).await;
    scene.until_empty().await;
    draining.stop().await;
    scene.deliver(&a).await;
    assert_eq!(scene.effects().await.len(), 5);
}

#[tokio::test]
async fn messages_without_a_key_are_parked_alone_and_dropped_when_they_come_again() {
    let scene = Scene::new().await;
    let all = [message(None, 1), message(None, 2), message(None, 3), message(Some(b""), 4)];
    scene.handler.on(all[0].id, Act::Transient);
    scene.handler.on(all[1].id, Act::Transient);
    scene.handler.on(all[3].id, Act::Transient);
    scene.deliver(&all).await;
    scene.deliver(&all).await;
    assert_eq!((scene.effects().await, scene.parked().await), (vec![3], (3, 3)));
    assert_eq!(scene.handler.calls(all[0].id), 1);
    scene.handler.heal(all[0].id);
    scene.handler.heal(all[3].id);
    let draining = scene.drain();
    waybill_testkit::eventually(async || {
        let effects = scene.effects().await;
        if effects.len() == 3 { Ok(()) } else { Err(effects) }
    })
    .await;
    draining.stop().await;
    // The key that is empty is a key: it came back as one.
    let keys: Vec<Option<Vec<u8>>> = sqlx::query_scalar("select key from effect where n <> 3 order by n")
        .fetch_all(&scene.pool)
        .await
        .unwrap();
    assert_eq!(keys, [None, Some(Vec::new())]);
}

#[tokio::test]
async fn a_key_larger_than_an_index_entry_is_parked_like_any_other() {
    let scene = Scene::new().await;
    let mut random = vec![0; 100_000];
    rand::fill(&mut random[..]);
    let all = messages(&random, 2);
    scene.handler.on(all[0].id, Act::TransientOnce);
    scene.deliver(&all).await;
    assert_eq!(scene.parked().await, (1, 2));
    let draining = scene.drain();
    scene.until_effects(&[1, 2]).await;
    draining.stop().await;
}

#[tokio::test]
async fn a_record_comes_back_as_it_was() {
    let scene = Scene::new().await;
    let headers = [
        Header::new("a", "1"),
        Header::null("b"),
        Header::new("a", vec![0xff, 0]),
        Header::new("", "zero\0"),
    ];
    let headers: Headers = headers.into_iter().collect();
    for (value, timestamp_ms) in [(None, None), (Some(Vec::new()), Some(-1)), (Some(vec![0, 0xff]), Some(7))]
    {
        let given = Record {
            value,
            timestamp_ms,
            headers: RecordHeaders::Read(headers.clone()),
            ..record(Some(b"k"), 5)
        };
        let (id, key) = (MessageId::new(), Key { keyless: false, bytes: Uuid::now_v7().into() });
        let given = Record { key: Some(key.bytes.clone()), ..given };
        let parcel = Parcel { id, key: key.clone(), record: Arc::new(given) };
        let opening =
            (parcel, Opening::Retry { attempts: 1, due_in: std::time::Duration::ZERO, failed: None });

        let mut lease = Lease::acquire(&scene.pool).await.unwrap();
        let mut tx = lease.begin(&scene.settings).await.unwrap();
        store::open(&mut tx, GROUP, TOPIC, &[&opening]).await.unwrap();
        let held = store::parked(&mut tx, GROUP, TOPIC, std::slice::from_ref(&key)).await.unwrap();
        store::append(&mut tx, GROUP, &[(held[&key], &opening.0)]).await.unwrap();
        let row = store::lock(&mut tx, held[&key]).await.unwrap().unwrap();
        let head = store::head(&mut tx, row.id).await.unwrap().unwrap();
        tx.commit().await.unwrap();

        let (given, back) = (&opening.0.record, head.record(&row, &TOPIC.into()));
        assert_eq!(
            (&back.key, &back.value, back.timestamp_ms),
            (&given.key, &given.value, given.timestamp_ms)
        );
        assert_eq!((&*back.topic, back.partition, back.offset), (TOPIC, 3, 5));
        assert_eq!(back.headers(), &headers);
    }
}

#[tokio::test]
async fn a_crash_between_any_two_statements_leaves_nothing_behind() {
    let scene = Scene::new().await;
    let a = messages(b"a", 3);
    scene.handler.on(a[0].id, Act::Transient);
    for step in 0..=4 {
        assert!(scene.try_deliver(&a, step).await.is_err());
        assert_eq!((scene.parked().await, scene.effects().await), ((0, 0), Vec::new()), "step {step}");
        assert!(scene.inbox(a[0].id).await.is_none());
    }
    scene.deliver(&a).await;
    for step in 0..=4 {
        assert!(scene.try_deliver(&a, step).await.is_err());
        assert_eq!(scene.parked().await, (1, 3), "step {step}");
    }
}

#[tokio::test]
async fn a_park_reads_nothing_and_writes_nothing_for_an_empty_batch() {
    let scene = Scene::new().await;
    let mut lease = Lease::acquire(&scene.pool).await.unwrap();
    let mut tx = lease.begin(&scene.settings).await.unwrap();
    let none: [Message<waybill_event::OrderEvent>; 0] = [];
    let mut parks = Parks::read(&mut tx, GROUP, TOPIC, &none).await.unwrap();
    assert!(parks.is_idle());
    assert_eq!(parks.write(&mut tx).await.unwrap(), 0);
}

#[tokio::test]
async fn a_message_that_is_diverted_to_no_park_fails_the_transaction_and_is_not_lost() {
    let scene = Scene::new().await;
    let all = messages(b"k", 1);
    let mut tx = scene.pool.begin().await.unwrap();
    let mut parks = Parks::read(&mut tx, GROUP, TOPIC, &all).await.unwrap();
    parks.divert(&all[0]);
    assert!(parks.write(&mut tx).await.is_err());
}

#[tokio::test]
async fn a_message_whose_own_transaction_is_gone_is_parked_in_another() {
    let scene = Scene::new().await;
    let all = messages(b"k", 3);
    let opening = || Opening::Retry { attempts: 1, due_in: std::time::Duration::ZERO, failed: None };
    scene.deliver(&all[..1]).await;
    for message in [&all[0], &all[1], &all[1], &all[2]] {
        park_failed(&scene.pool, &scene.settings, GROUP, TOPIC, message, opening()).await.unwrap();
    }
    assert_eq!(scene.parked().await, (1, 2));
    assert!(scene.inbox(all[1].id).await.is_none());
    let draining = scene.drain();
    scene.until_effects(&[1, 2, 3]).await;
    draining.stop().await;
}

#[tokio::test]
async fn keys_are_opened_in_one_order_whatever_order_they_come_in() {
    let scene = Scene::new().await;
    let sorted: Vec<Vec<u8>> =
        sqlx::query_scalar("select k from unnest($1::bytea[]) as k order by sha256(k)")
            .bind(vec![b"a".to_vec(), b"b".to_vec()])
            .fetch_all(&scene.pool)
            .await
            .unwrap();
    let opening = |key: &[u8]| {
        let opening = Opening::Retry { attempts: 1, due_in: std::time::Duration::ZERO, failed: None };
        (Parcel::of(&message(Some(key), 1)), opening)
    };
    let (low, high) = (opening(&sorted[0]), opening(&sorted[1]));
    let mut one = scene.pool.begin().await.unwrap();
    sqlx::raw_sql("set local lock_timeout = '5s'").execute(&mut *one).await.unwrap();
    store::open(&mut one, GROUP, TOPIC, &[&low]).await.unwrap();
    let (pool, both) = (scene.pool.clone(), [opening(&sorted[1]), opening(&sorted[0])]);
    let other = tokio::spawn(async move {
        let mut tx = pool.begin().await.unwrap();
        store::open(&mut tx, GROUP, TOPIC, &[&both[0], &both[1]]).await.unwrap();
        tx.commit().await.unwrap();
    });
    scene.until_blocked().await;
    // The other has not taken this one before the one it waits for: else they would wait for each other.
    store::open(&mut one, GROUP, TOPIC, &[&high]).await.unwrap();
    one.commit().await.unwrap();
    other.await.unwrap();
    assert_eq!(scene.parked().await.0, 2);
}

#[tokio::test]
async fn asking_for_keys_by_a_plan_made_before_the_first_vacuum_reads_those_keys_only() {
    let scene = Scene::new().await;
    let mut tx = scene.pool.begin().await.unwrap();
    let key = |byte| Key { keyless: false, bytes: vec![byte] };
    let fill = "insert into messaging.parked_key (consumer_group, topic, key, keyless, attempts, due_at, parked_at)
                select $1, $2, gen_random_uuid()::text::bytea, false, 0, now(), now() from generate_series(1, $3)";
    let read = "select sum(pg_stat_get_xact_tuples_returned(c.oid))::bigint from pg_class c
                where c.relname in ('parked_key', 'parked_key_key')";
    let mut before = 0_i64;
    for rows in [3, 0, 0, 0, 0, 0, 0, 20_000] {
        sqlx::query(fill).bind(GROUP).bind(TOPIC).bind(rows).execute(&mut *tx).await.unwrap();
        before = sqlx::query_scalar(read).fetch_one(&mut *tx).await.unwrap();
        store::parked(&mut tx, GROUP, TOPIC, &[key(1), key(2)]).await.unwrap();
    }
    let after: i64 = sqlx::query_scalar(read).fetch_one(&mut *tx).await.unwrap();
    assert!(after - before < 50, "{} rows", after - before);
}
