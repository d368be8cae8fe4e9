//! Heads that die.

use std::time::Duration;

use waybill_testkit::eventually;

use super::support::{Act, GROUP, Letter, Scene, TOPIC, copy, message, messages};
use crate::{AfterDead, park::release};

async fn until_letters(scene: &Scene, count: usize) -> Vec<Letter> {
    eventually(async || {
        let dead = scene.published.dead();
        if dead.len() >= count { Ok(dead) } else { Err(dead) }
    })
    .await
}

async fn until_parked(scene: &Scene, expected: (i64, i64)) {
    eventually(async || {
        let parked = scene.parked().await;
        if parked == expected { Ok(()) } else { Err(parked) }
    })
    .await;
}

/// Three messages of one key, the first of which has failed.
async fn parked(scene: &Scene) -> Vec<crate::Message<waybill_event::OrderEvent>> {
    let all = messages(b"k", 3);
    scene.handler.on(all[0].id, Act::Transient);
    scene.deliver(&all).await;
    all
}

#[tokio::test]
async fn after_the_last_attempt_the_head_is_dead_and_the_key_goes_on() {
    let scene = Scene::new().await;
    let all = parked(&scene).await;
    scene.handler.on(all[1].id, Act::TransientOnce);
    let draining = scene.drain();
    scene.until_effects(&[2, 3]).await;
    scene.until_empty().await;
    draining.stop().await;
    let dead = scene.published.dead();
    assert_eq!(dead.len(), 1);
    let (id, class, code, attempts, first) = dead[0].clone();
    assert_eq!((id, class, code.as_str(), attempts), (all[0].id.as_uuid(), "transient", "handler", 3));
    assert!(first.is_some(), "when it failed first is not when it failed last");
    assert_eq!(scene.inbox(all[0].id).await, Some(("dead".to_owned(), None)));
    // Later copies are skipped.
    scene.deliver(&all).await;
    assert_eq!((scene.effects().await, scene.parked().await), (vec![2, 3], (0, 0)));
}

#[tokio::test]
async fn a_permanent_failure_and_a_second_panic_are_dead_at_once() {
    for (act, class, calls) in [(Act::Permanent, "permanent", 2), (Act::Panic, "panic", 3)] {
        for turn in [1, 50] {
            let mut scene = Scene::new().await;
            scene.park.turn = turn;
            let all = parked(&scene).await;
            scene.handler.on(all[0].id, act.clone());
            let draining = scene.drain();
            scene.until_effects(&[2, 3]).await;
            draining.stop().await;
            let dead = scene.published.dead();
            assert_eq!((dead.len(), dead[0].1, dead[0].3), (1, class, 2));
            assert_eq!(scene.handler.calls(all[0].id), calls);
        }
    }
}

#[tokio::test]
async fn beyond_the_deadline_an_attempt_is_the_last() {
    let mut scene = Scene::new().await;
    scene.park.retry.deadline = Duration::from_millis(1);
    let all = parked(&scene).await;
    let draining = scene.drain();
    scene.until_effects(&[2, 3]).await;
    draining.stop().await;
    assert_eq!((scene.published.dead()[0].1, scene.handler.calls(all[0].id)), ("transient", 2));
}

#[tokio::test]
async fn what_does_not_decode_any_more_is_dead_and_an_unknown_schema_is_waited_for() {
    let mut scene = Scene::new().await;
    let all = parked(&scene).await;
    let mut settings = (*scene.settings).clone();
    settings.schema_patience = Duration::from_millis(500);
    scene.settings = std::sync::Arc::new(settings);
    // Avro's marker with a fingerprint that nobody knows.
    for value in ["'\\x00'", "'\\xc3010102030405060708'"] {
        sqlx::query(sqlx::AssertSqlSafe(format!(
            "update messaging.parked_message set value = {value}::bytea where position = \
             (select min(position) from messaging.parked_message)"
        )))
        .execute(&scene.pool)
        .await
        .unwrap();
        let before = scene.published.dead().len();
        let started = std::time::Instant::now();
        let draining = scene.drain();
        let dead = until_letters(&scene, before + 1).await;
        draining.stop().await;
        assert_eq!(dead[before].1, "decode");
        if before == 0 {
            // The first is buried; the next message takes its place below.
            assert_eq!(dead[0].0, all[0].id.as_uuid());
            sqlx::query("update messaging.parked_message set dead = false")
                .execute(&scene.pool)
                .await
                .unwrap();
            let rest = messages(b"later", 1);
            scene.handler.on(rest[0].id, Act::TransientOnce);
            scene.deliver(&rest).await;
        } else {
            assert!(started.elapsed() > Duration::from_millis(500), "{:?}", started.elapsed());
        }
    }
}

#[tokio::test]
async fn a_refused_dead_letter_keeps_the_head_and_what_is_behind_it() {
    let scene = Scene::new().await;
    let all = parked(&scene).await;
    scene.handler.on(all[0].id, Act::Permanent);
    scene.published.refuse(true);
    let draining = scene.drain();
    eventually(async || if scene.handler.calls(all[0].id) == 2 { Ok(()) } else { Err(()) }).await;
    assert_eq!((scene.parked().await, scene.effects().await), ((1, 3), vec![]));
    assert!(scene.inbox(all[0].id).await.is_none(), "a dead row without its letter");
    scene.published.refuse(false);
    scene.until_effects(&[2, 3]).await;
    draining.stop().await;
    assert_eq!((scene.published.dead().len(), scene.handler.calls(all[0].id)), (1, 2));
}

#[tokio::test]
async fn while_a_dead_letter_is_under_way_nobody_else_handles_or_publishes_it() {
    let mut scene = Scene::new().await;
    let all = parked(&scene).await;
    scene.handler.on(all[0].id, Act::Permanent);
    scene.published.hold(true);
    scene.park.lease = Duration::from_secs(3_600);
    let (first, second) = (scene.drain(), scene.drain());
    until_letters(&scene, 1).await;
    // Both have looked since.
    let other = message(Some(b"other"), 9);
    scene.handler.on(other.id, Act::TransientOnce);
    scene.deliver(&[other]).await;
    scene.until_effects(&[9]).await;
    until_parked(&scene, (1, 3)).await;
    assert_eq!((scene.published.dead().len(), scene.handler.calls(all[0].id)), (1, 2));

    // The process dies before the acknowledgement is written down: published once more, under the same id, and not
    // handled again.
    first.abort().await;
    second.abort().await;
    assert_eq!((scene.parked().await, scene.inbox(all[0].id).await), ((1, 3), None));
    scene.published.hold(false);
    sqlx::query("update messaging.parked_key set due_at = messaging.now()")
        .execute(&scene.pool)
        .await
        .unwrap();
    let draining = scene.drain();
    scene.until_effects(&[9, 2, 3]).await;
    draining.stop().await;
    let dead = scene.published.dead();
    assert_eq!((dead.len(), scene.handler.calls(all[0].id)), (2, 2));
    assert_eq!((dead[0].0, dead[0].1, &dead[0].2), (dead[1].0, dead[1].1, &dead[1].2));
    assert_eq!(dead[0].3, dead[1].3);
}

#[tokio::test]
async fn a_blocked_key_waits_until_it_is_released_and_the_others_flow() {
    let mut scene = Scene::new().await;
    scene.park.after_dead = AfterDead::Block;
    let all = parked(&scene).await;
    scene.handler.on(all[0].id, Act::Permanent);
    let draining = scene.drain();
    let state = || sqlx::query_scalar::<_, String>("select state from messaging.parked_key where key = 'k'");
    eventually(async || match state().fetch_one(&scene.pool).await.unwrap() {
        blocked if blocked == "blocked" => Ok(()),
        other => Err(other),
    })
    .await;
    assert_eq!(scene.inbox(all[0].id).await.unwrap().0, "dead");
    let (later, other) = (message(Some(b"k"), 4), message(Some(b"other"), 9));
    scene.handler.on(other.id, Act::TransientOnce);
    scene.deliver(&[copy(&all[0]), later, other]).await;
    scene.until_effects(&[9]).await;
    assert!(!release(&scene.pool, GROUP, TOPIC, b"k", true).await.unwrap());
    assert!(release(&scene.pool, GROUP, TOPIC, b"k", false).await.unwrap());
    assert!(!release(&scene.pool, GROUP, TOPIC, b"k", false).await.unwrap());
    scene.until_effects(&[9, 2, 3, 4]).await;
    scene.until_empty().await;
    draining.stop().await;
}

#[tokio::test]
async fn a_blocked_key_that_is_empty_stays_blocked() {
    let mut scene = Scene::new().await;
    scene.park.after_dead = AfterDead::Block;
    let all = messages(b"k", 2);
    scene.handler.on(all[0].id, Act::Transient);
    scene.deliver(&all[..1]).await;
    scene.handler.on(all[0].id, Act::Permanent);
    let draining = scene.drain();
    until_parked(&scene, (1, 0)).await;
    scene.deliver(&all[1..]).await;
    let other = message(Some(b"other"), 9);
    scene.handler.on(other.id, Act::TransientOnce);
    scene.deliver(&[other]).await;
    scene.until_effects(&[9]).await;
    assert_eq!(scene.parked().await.1, 1);
    assert!(release(&scene.pool, GROUP, TOPIC, b"k", false).await.unwrap());
    scene.until_effects(&[9, 2]).await;
    draining.stop().await;
}

#[tokio::test]
async fn what_dies_in_its_batch_is_buried_by_the_drainer_before_its_key_goes_on() {
    for after_dead in [AfterDead::Continue, AfterDead::Block] {
        let mut scene = Scene::new().await;
        scene.park.after_dead = after_dead;
        let all = messages(b"k", 2);
        scene.handler.on(all[0].id, Act::Permanent);
        scene.deliver(&all).await;
        // A crash now, and the message is delivered again: it is as dead as before, and nothing has passed it.
        scene.handler.heal(all[0].id);
        scene.deliver(&all).await;
        assert_eq!((scene.parked().await, scene.effects().await), ((1, 2), vec![]));
        let draining = scene.drain();
        until_letters(&scene, 1).await;
        if after_dead == AfterDead::Block {
            until_parked(&scene, (1, 1)).await;
            assert!(release(&scene.pool, GROUP, TOPIC, b"k", false).await.unwrap());
        }
        scene.until_effects(&[2]).await;
        draining.stop().await;
        let letter = scene.published.dead()[0].clone();
        assert_eq!((letter.0, letter.1, letter.3), (all[0].id.as_uuid(), "permanent", 1));
        assert_eq!(scene.handler.calls(all[0].id), 1);
        assert_eq!(scene.inbox(all[0].id).await.unwrap().0, "dead");
    }
}

#[tokio::test]
async fn what_ended_the_process_too_often_is_dead_without_being_handled() {
    let scene = Scene::new().await;
    let all = parked(&scene).await;
    scene.published.crashes.lock().unwrap().push(all[0].id);
    let draining = scene.drain();
    scene.until_effects(&[2, 3]).await;
    draining.stop().await;
    let letter = scene.published.dead()[0].clone();
    assert_eq!((letter.0, letter.1, letter.2.as_str()), (all[0].id.as_uuid(), "crash", "crash"));
    assert_eq!(scene.handler.calls(all[0].id), 1);
}

/// Nothing can stand behind it, and nobody would ever release it.
#[tokio::test]
async fn a_dead_message_without_a_key_blocks_nothing() {
    let mut scene = Scene::new().await;
    scene.park.after_dead = AfterDead::Block;
    let all: Vec<_> = (1..=3).map(|n| message(None, n)).collect();
    for one in &all[..2] {
        scene.handler.on(one.id, Act::Permanent);
    }
    scene.deliver(&all).await;
    let draining = scene.drain();
    until_letters(&scene, 2).await;
    scene.until_empty().await;
    draining.stop().await;
    assert_eq!(scene.effects().await, [3]);
}
