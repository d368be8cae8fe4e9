//! Two connections, each interleaving forced.

use std::{collections::HashMap, sync::Arc};

use sqlx::PgTransaction;
use tokio::task::JoinHandle;
use waybill_event::OrderEvent;

use super::support::{Act, GROUP, Scene, TOPIC, claim, copy, message, messages};
use crate::{
    Message,
    park::{Key, Opening, Parks, store},
    store::Lease,
};

fn opening() -> Opening {
    Opening::Retry { attempts: 1, due_in: std::time::Duration::ZERO, failed: None }
}

async fn begin(scene: &Scene) -> PgTransaction<'static> {
    let mut tx = scene.pool.begin().await.unwrap();
    sqlx::raw_sql("set local lock_timeout = '5s'").execute(&mut *tx).await.unwrap();
    tx
}

/// Claims, asks, parks the first message with the others behind it; not committed.
async fn park_first(tx: &mut PgTransaction<'_>, all: &[Message<OrderEvent>]) {
    assert_eq!(claim(tx, all).await.unwrap().len(), all.len());
    let mut parks = Parks::read(tx, GROUP, TOPIC, all).await.unwrap();
    assert!(!parks.holds(&all[0]));
    parks.open(&all[0], opening());
    for message in &all[1..] {
        assert!(parks.holds(message), "the key is held from its failure on");
        parks.divert(message);
    }
    parks.write(tx).await.unwrap();
}

fn deliver(scene: &Arc<Scene>, all: &[Message<OrderEvent>]) -> JoinHandle<()> {
    let (scene, all): (_, Vec<_>) = (Arc::clone(scene), all.iter().map(copy).collect());
    tokio::spawn(async move { scene.deliver(&all).await })
}

async fn key_id(scene: &Scene) -> i64 {
    sqlx::query_scalar("select id from messaging.parked_key").fetch_one(&scene.pool).await.unwrap()
}

#[tokio::test]
async fn two_instances_that_park_one_key_share_its_park() {
    for commits in [true, false] {
        let scene = Arc::new(Scene::new().await);
        // One key in two partitions.
        let (one, other) = (messages(b"k", 2), vec![message(Some(b"k"), 8)]);
        scene.handler.on(other[0].id, Act::TransientOnce);
        let mut tx = begin(&scene).await;
        park_first(&mut tx, &one).await;
        let delivering = deliver(&scene, &other);
        scene.until_blocked().await;
        if commits {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        delivering.await.unwrap();
        assert_eq!(scene.parked().await, (1, if commits { 3 } else { 1 }));
        let draining = scene.drain();
        scene.until_effects(if commits { &[1, 2, 8] } else { &[8] }).await;
        draining.stop().await;
    }
}

#[tokio::test]
async fn who_meets_a_zombies_claim_waits_and_sees_what_it_parked() {
    for commits in [true, false] {
        let scene = Arc::new(Scene::new().await);
        let all = messages(b"k", 3);
        // The zombie has parked two messages, so its claim of them is taken back, but not yet for others.
        let mut zombie = begin(&scene).await;
        park_first(&mut zombie, &all[..2]).await;
        let delivering = deliver(&scene, &all);
        scene.until_blocked().await;
        assert!(scene.handler.calls.lock().unwrap().is_empty(), "handled beside an open claim");
        if commits {
            zombie.commit().await.unwrap();
            delivering.await.unwrap();
            assert_eq!((scene.effects().await, scene.parked().await), (vec![], (1, 3)));
            let draining = scene.drain();
            scene.until_effects(&[1, 2, 3]).await;
            draining.stop().await;
        } else {
            drop(zombie);
            delivering.await.unwrap();
            assert_eq!((scene.effects().await, scene.parked().await), (vec![1, 2, 3], (0, 0)));
        }
    }
}

#[tokio::test]
async fn a_batch_that_appends_keeps_the_park_from_ending() {
    let scene = Scene::new().await;
    let all = messages(b"k", 2);
    scene.handler.on(all[0].id, Act::Transient);
    scene.deliver(&all[..1]).await;
    let id = key_id(&scene).await;
    // The head is handled elsewhere; the park is empty now.
    let mut drainer = begin(&scene).await;
    let head = store::head(&mut drainer, id).await.unwrap().unwrap();
    store::done(&mut drainer, id, head.position).await.unwrap();
    drainer.commit().await.unwrap();

    // The batch has asked, and appends; the end does not get the key, and does not wait for it.
    let mut batch = begin(&scene).await;
    claim(&mut batch, &all[1..]).await.unwrap();
    let mut parks = Parks::read(&mut batch, GROUP, TOPIC, &all[1..]).await.unwrap();
    assert!(parks.holds(&all[1]));
    let mut ending = begin(&scene).await;
    assert!(!store::end(&mut ending, id).await.unwrap());
    drop(ending);
    parks.divert(&all[1]);
    parks.write(&mut batch).await.unwrap();
    batch.commit().await.unwrap();

    // It has seen the park empty before the batch; behind the lock it looks again.
    let mut ending = begin(&scene).await;
    assert!(!store::end(&mut ending, id).await.unwrap());
    ending.commit().await.unwrap();
    let draining = scene.drain();
    scene.until_effects(&[2]).await;
    scene.until_empty().await;
    draining.stop().await;
}

#[tokio::test]
async fn a_batch_waits_for_the_end_of_a_park_and_then_handles_inline() {
    for commits in [true, false] {
        let scene = Arc::new(Scene::new().await);
        let all = messages(b"k", 2);
        scene.handler.on(all[0].id, Act::Transient);
        scene.deliver(&all[..1]).await;
        let id = key_id(&scene).await;
        let mut drainer = begin(&scene).await;
        let head = store::head(&mut drainer, id).await.unwrap().unwrap();
        assert!(store::claim(&mut drainer, GROUP, head.message_id).await.unwrap());
        store::done(&mut drainer, id, head.position).await.unwrap();
        drainer.commit().await.unwrap();

        let mut ending = begin(&scene).await;
        assert!(store::end(&mut ending, id).await.unwrap());
        let delivering = deliver(&scene, &all);
        scene.until_blocked().await;
        if commits {
            ending.commit().await.unwrap()
        } else {
            ending.rollback().await.unwrap()
        }
        delivering.await.unwrap();
        if commits {
            assert_eq!((scene.effects().await, scene.parked().await), (vec![2], (0, 0)));
        } else {
            assert_eq!((scene.effects().await, scene.parked().await), (vec![], (1, 1)));
        }
    }
}

#[tokio::test]
async fn a_key_that_another_transaction_opened_and_ended_meanwhile_is_opened_anew() {
    let scene = Arc::new(Scene::new().await);
    let (one, other) = (messages(b"k", 1), vec![message(Some(b"k"), 8)]);
    scene.handler.on(other[0].id, Act::TransientOnce);
    let mut tx = begin(&scene).await;
    park_first(&mut tx, &one).await;
    let delivering = deliver(&scene, &other);
    scene.until_blocked().await;
    // Handled and ended before it commits: who waited finds no key, neither to join nor in its way.
    let id = sqlx::query_scalar("select id from messaging.parked_key").fetch_one(&mut *tx).await.unwrap();
    let head = store::head(&mut tx, id).await.unwrap().unwrap();
    store::done(&mut tx, id, head.position).await.unwrap();
    assert!(store::end(&mut tx, id).await.unwrap());
    tx.commit().await.unwrap();
    delivering.await.unwrap();
    assert_eq!(scene.parked().await, (1, 1));
}

#[tokio::test]
async fn batches_that_hold_several_keys_do_not_deadlock() {
    let scene = Scene::new().await;
    let keys: Vec<Vec<u8>> = (0..20_u8).map(|n| vec![n]).collect();
    let forward: Vec<_> = keys.iter().map(|key| message(Some(key), 1)).collect();
    let backward: Vec<_> = keys.iter().rev().map(|key| message(Some(key), 2)).collect();
    for message in forward.iter().chain(&backward) {
        scene.handler.on(message.id, Act::Transient);
    }
    let (a, b) =
        tokio::join!(scene.try_deliver(&forward, usize::MAX), scene.try_deliver(&backward, usize::MAX));
    a.unwrap();
    b.unwrap();
    assert_eq!(scene.parked().await, (20, 40));
}

#[tokio::test]
async fn appending_does_not_wait_for_a_head_that_is_being_handled() {
    let scene = Scene::new().await;
    let all = messages(b"k", 3);
    scene.handler.on(all[0].id, Act::Transient);
    scene.deliver(&all[..2]).await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    scene.handler.on(all[0].id, Act::Gate(Arc::clone(&gate)));
    let draining = scene.drain();
    waybill_testkit::eventually(async || if scene.handler.calls(all[0].id) == 2 { Ok(()) } else { Err(()) })
        .await;
    // Were it to wait, the lock would time out and fail it.
    scene.try_deliver(&all[2..], usize::MAX).await.unwrap();
    gate.add_permits(1);
    scene.until_effects(&[1, 2, 3]).await;
    draining.stop().await;
}

#[tokio::test]
async fn of_two_drainers_one_gets_the_key() {
    let scene = Scene::new().await;
    let all = messages(b"k", 1);
    scene.handler.on(all[0].id, Act::Transient);
    scene.deliver(&all).await;
    let id = key_id(&scene).await;
    let (mut one, mut other) = (begin(&scene).await, begin(&scene).await);
    assert!(store::lock(&mut one, id).await.unwrap().is_some());
    assert!(store::lock(&mut other, id).await.unwrap().is_none());
}

#[tokio::test]
async fn whether_a_key_is_parked_is_asked_of_the_database_each_time() {
    let scene = Scene::new().await;
    let key = Key { keyless: false, bytes: b"k".to_vec() };
    let mut lease = Lease::acquire(&scene.pool).await.unwrap();
    let mut tx = lease.begin(&scene.settings).await.unwrap();
    let keys = [key.clone()];
    assert_eq!(store::parked(&mut tx, GROUP, TOPIC, &keys).await.unwrap(), HashMap::new());
    let all = messages(b"k", 1);
    scene.handler.on(all[0].id, Act::Transient);
    scene.deliver(&all).await;
    assert!(store::parked(&mut tx, GROUP, TOPIC, &keys).await.unwrap().contains_key(&key));
    assert!(store::parked(&mut tx, "other", TOPIC, &keys).await.unwrap().is_empty());
    assert!(store::parked(&mut tx, GROUP, "other", &keys).await.unwrap().is_empty());
}

async fn key_row(scene: &Scene) -> (i32, bool, bool) {
    sqlx::query_as(
        "select attempts, first_failed_at is not null, due_at > messaging.now() + interval '30 minutes' \
         from messaging.parked_key",
    )
    .fetch_one(&scene.pool)
    .await
    .unwrap()
}

/// The handler's transaction found no park; while it ran, a replay of an earlier message of the key was parked.
#[tokio::test]
async fn a_message_that_fails_while_a_replay_opens_its_park_keeps_its_attempt_and_its_delay() {
    for fails_at_once in [false, true] {
        let scene = Scene::new().await;
        let (dead, live) = (message(Some(b"k"), 1), messages(b"k", 3));
        scene.dead(&[dead.id]).await;
        let hour = std::time::Duration::from_secs(3_600);
        let retry = || Opening::Retry { attempts: 1, due_in: hour, failed: None };
        let mut tx = begin(&scene).await;
        assert_eq!(claim(&mut tx, &live).await.unwrap().len(), 3);
        let mut parks = Parks::read(&mut tx, GROUP, TOPIC, &live).await.unwrap();
        scene.replay(&dead, uuid::Uuid::now_v7()).await;
        parks.open(&live[0], retry());
        parks.divert(&live[1]);
        parks.write(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(key_row(&scene).await, (1, true, true));
        // What comes later and fails elsewhere is no head, and changes nothing.
        if fails_at_once {
            let mut tx = begin(&scene).await;
            let late = [message(Some(b"k"), 9)];
            claim(&mut tx, &late).await.unwrap();
            let mut parks = Parks::read(&mut tx, GROUP, TOPIC, &[] as &[Message<OrderEvent>]).await.unwrap();
            parks.open(
                &late[0],
                Opening::Retry { attempts: 4, due_in: std::time::Duration::ZERO, failed: None },
            );
            parks.write(&mut tx).await.unwrap();
            tx.commit().await.unwrap();
            assert_eq!(key_row(&scene).await, (1, true, true));
        }
        let draining = scene.drain();
        scene.until_effects(&[1]).await;
        draining.stop().await;
        assert_eq!((key_row(&scene).await, scene.handler.calls(live[0].id)), ((1, true, true), 0));
    }
}

/// Its session was ended by the server, and another instance has had the head since.
#[tokio::test]
async fn a_drainer_that_lost_its_connection_does_not_shorten_what_another_has_written() {
    let mut scene = Scene::new().await;
    scene.park.retry.tiers = vec![std::time::Duration::from_secs(3_600); 2];
    scene.park.retry.deadline = std::time::Duration::from_secs(86_400);
    let (one, gate) = (message(Some(b"k"), 1), Arc::new(tokio::sync::Semaphore::new(0)));
    scene.handler.on(one.id, Act::Transient);
    scene.deliver(std::slice::from_ref(&one)).await;
    scene.handler.on(one.id, Act::Gate(Arc::clone(&gate)));
    let first = scene.drain();
    let called = async || if scene.handler.calls(one.id) == 2 { Ok(()) } else { Err("not called") };
    waybill_testkit::eventually(called).await;
    let end = "select pg_terminate_backend(pid) from pg_stat_activity \
               where datname = current_database() and state = 'idle in transaction'";
    sqlx::query(end).execute(&scene.pool).await.unwrap();
    scene.handler.on(one.id, Act::Transient);
    let second = scene.drain();
    let failed = async || match key_row(&scene).await {
        (2, true, true) => Ok(()),
        other => Err(other),
    };
    waybill_testkit::eventually(failed).await;
    gate.add_permits(1);
    first.stop().await;
    assert_eq!(key_row(&scene).await, (2, true, true));
    second.stop().await;
}
