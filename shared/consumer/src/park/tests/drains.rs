//! Heads that are handled in the end.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use tokio::sync::Semaphore;
use waybill_testkit::eventually;

use super::support::{Act, Scene, message, messages};

#[tokio::test]
async fn a_head_is_tried_again_until_it_succeeds_and_the_others_follow_in_order() {
    let scene = Scene::new().await;
    let all = messages(b"k", 3);
    scene.handler.on(all[0].id, Act::Transient);
    scene.deliver(&all).await;
    scene.handler.on(all[0].id, Act::TransientOnce);
    scene.handler.on(all[1].id, Act::TransientOnce);
    let draining = scene.drain();
    scene.until_effects(&[1, 2, 3]).await;
    scene.until_empty().await;
    draining.stop().await;
    let calls = scene.handler.calls.lock().unwrap().clone();
    let attempts = |id: waybill_event::MessageId| {
        calls
            .iter()
            .filter(|(called, _)| *called == id.as_uuid())
            .map(|(_, attempt)| *attempt)
            .collect::<Vec<_>>()
    };
    assert_eq!(attempts(all[0].id), [1, 2, 3]);
    // Each message has its own attempts.
    assert_eq!((attempts(all[1].id), attempts(all[2].id)), (vec![1, 2], vec![1]));
    let committed = scene.handler.committed.lock().unwrap().clone();
    assert_eq!(committed, all.iter().map(|message| message.id.as_uuid()).collect::<Vec<_>>());
    assert!(scene.published.dead().is_empty());
}

#[tokio::test]
async fn a_head_is_not_tried_before_it_is_due() {
    let mut scene = Scene::new().await;
    scene.park.retry.tiers = vec![Duration::from_secs(3_600)];
    let all = messages(b"k", 1);
    scene.handler.on(all[0].id, Act::TransientOnce);
    scene.deliver(&all).await;
    sqlx::query("update messaging.parked_key set due_at = messaging.now() + interval '1 hour'")
        .execute(&scene.pool)
        .await
        .unwrap();
    let draining = scene.drain();
    // Another key comes and goes: the drainer has looked.
    let other = messages(b"other", 1);
    scene.handler.on(other[0].id, Act::TransientOnce);
    scene.deliver(&other).await;
    scene.until_effects(&[1]).await;
    assert_eq!(scene.handler.calls(all[0].id), 1);
    // By the clock of the database.
    let hour = "create or replace function messaging.now() returns timestamptz language sql volatile \
                as $$ select clock_timestamp() + interval '61 minutes' $$";
    sqlx::raw_sql(hour).execute(&scene.pool).await.unwrap();
    scene.until_effects(&[1, 1]).await;
    draining.stop().await;
}

#[tokio::test]
async fn keys_do_not_wait_for_each_other() {
    let scene = Scene::new().await;
    let (slow, quick) = (messages(b"slow", 2), messages(b"quick", 40));
    let gate = Arc::new(Semaphore::new(0));
    scene.handler.on(slow[0].id, Act::Transient);
    scene.handler.on(quick[0].id, Act::TransientOnce);
    scene.deliver(&slow).await;
    scene.deliver(&quick).await;
    scene.handler.on(slow[0].id, Act::Gate(Arc::clone(&gate)));
    let draining = scene.drain();
    scene.until_effects(&(1..=40).collect::<Vec<_>>()).await;
    gate.add_permits(1);
    eventually(async || if scene.effects().await.len() == 42 { Ok(()) } else { Err(()) }).await;
    draining.stop().await;
}

#[tokio::test]
async fn what_names_no_message_and_what_ends_the_connection_is_no_attempt() {
    for act in [Act::Deadlock, Act::Kill, Act::PanicOnce] {
        let mut scene = Scene::new().await;
        // One attempt is left.
        scene.park.retry.tiers.truncate(1);
        let all = messages(b"k", 2);
        scene.handler.on(all[0].id, Act::TransientOnce);
        scene.deliver(&all).await;
        scene.handler.on(all[0].id, act);
        let draining = scene.drain();
        scene.until_effects(&[1, 2]).await;
        draining.stop().await;
        assert!(scene.published.dead().is_empty());
    }
}

#[tokio::test]
async fn a_failure_that_the_breaker_does_not_count_is_no_attempt() {
    let mut scene = Scene::new().await;
    scene.park.retry.tiers.truncate(1);
    let all = messages(b"k", 1);
    scene.handler.on(all[0].id, Act::TransientOnce);
    scene.deliver(&all).await;
    scene.published.uncounted.store(true, Ordering::SeqCst);
    scene.handler.on(all[0].id, Act::TransientOnce);
    let draining = scene.drain();
    scene.until_effects(&[1]).await;
    draining.stop().await;
    assert!(scene.published.dead().is_empty());
}

#[tokio::test]
async fn a_swallowed_error_is_not_taken_for_done() {
    let scene = Scene::new().await;
    let all = messages(b"k", 1);
    scene.handler.on(all[0].id, Act::TransientOnce);
    scene.deliver(&all).await;
    scene.handler.on(all[0].id, Act::Swallow);
    let draining = scene.drain();
    eventually(async || if scene.published.dead().len() == 1 { Ok(()) } else { Err(()) }).await;
    draining.stop().await;
    assert!(scene.effects().await.is_empty());
    assert_eq!(scene.published.dead()[0].2, "sqlstate_25P02");
}

#[tokio::test]
async fn a_database_that_ends_all_sessions_is_waited_for() {
    let scene = Scene::new().await;
    let all = messages(b"k", 30);
    scene.handler.on(all[0].id, Act::TransientOnce);
    scene.deliver(&all).await;
    let draining = scene.drain();
    for _ in 0..5 {
        scene.database.terminate_sessions().await;
        tokio::task::yield_now().await;
    }
    eventually(async || {
        let seen: Result<Vec<i64>, _> =
            sqlx::query_scalar("select n from effect order by seq").fetch_all(&scene.pool).await;
        match seen {
            Ok(seen) if seen.len() == 30 => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    })
    .await;
    assert_eq!(scene.effects().await, (1..=30).collect::<Vec<_>>());
    draining.stop().await;
    assert!(scene.published.dead().is_empty());
}

#[tokio::test]
async fn half_a_million_parked_messages_do_not_delay_the_start() {
    let scene = Scene::new().await;
    let fill = "insert into messaging.parked_key
            (consumer_group, topic, key, keyless, attempts, first_failed_at, due_at, parked_at)
        select 'notification', 'orders.v1', int4send(n), false, 1, now(), now() + interval '1 hour', now()
        from generate_series(1, 5000) n;
        insert into messaging.parked_message
            (parked_key_id, consumer_group, message_id, read_from, record_partition, record_offset, value, headers,
             parked_at)
        select k.id, 'notification', gen_random_uuid(), 'orders.v1', 0, 0, '', '[]', now()
        from messaging.parked_key k, generate_series(1, 100)";
    sqlx::raw_sql(fill).execute(&scene.pool).await.unwrap();
    let one = message(Some(b"one"), 1);
    scene.handler.on(one.id, Act::TransientOnce);
    scene.deliver(&[one]).await;
    let started = std::time::Instant::now();
    let draining = scene.drain();
    scene.until_effects(&[1]).await;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    println!("500,000 rows: first head after {took:?}");
    let counted = std::time::Instant::now();
    let parked = crate::park::gauge(&scene.pool, super::support::GROUP, super::support::TOPIC).await.unwrap();
    println!("{parked:?} counted in {:?}", counted.elapsed());
    draining.stop().await;
}

#[tokio::test]
async fn while_the_breaker_gives_no_leave_nothing_is_handled_and_stopping_does_not_wait_for_it() {
    let scene = Scene::new().await;
    let all = messages(b"k", 1);
    scene.handler.on(all[0].id, Act::TransientOnce);
    scene.deliver(&all).await;
    scene.published.shut.store(true, Ordering::SeqCst);
    let due = "update messaging.parked_key set due_at = messaging.now() - interval '1 hour'";
    sqlx::query(due).execute(&scene.pool).await.unwrap();
    let draining = scene.drain();
    tokio::time::timeout(Duration::from_secs(30), draining.stop()).await.unwrap();
    let draining = scene.drain();
    assert!(scene.effects().await.is_empty());
    scene.published.shut.store(false, Ordering::SeqCst);
    scene.until_effects(&[1]).await;
    draining.stop().await;
}
