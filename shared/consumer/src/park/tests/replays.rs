//! Replays through the park.

use uuid::Uuid;
use waybill_testkit::eventually;

use super::support::{Act, Scene, copy, message, messages};

async fn until_told(scene: &Scene, expected: &[(Uuid, Uuid, &str)]) {
    let expected: Vec<_> =
        expected.iter().map(|(id, replay, told)| (*id, *replay, (*told).to_owned())).collect();
    eventually(async || {
        let told = scene.published.told();
        if told == expected { Ok(()) } else { Err(told) }
    })
    .await;
}

#[tokio::test]
async fn a_replay_goes_before_all_that_waits_and_does_not_wait_for_the_heads_delay() {
    let mut scene = Scene::new().await;
    let (dead, all) = (message(Some(b"k"), 1), messages(b"k", 5));
    scene.dead(&[dead.id, all[1].id]).await;
    scene.handler.on(all[2].id, Act::Transient);
    scene.deliver(&all[2..]).await;
    scene.park.retry.tiers = vec![std::time::Duration::from_secs(3_600)];
    let wait = "update messaging.parked_key set due_at = messaging.now() + interval '1 hour'";
    sqlx::query(wait).execute(&scene.pool).await.unwrap();
    let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
    scene.replay(&dead, first).await;
    scene.replay(&all[1], second).await;
    scene.replay(&all[1], second).await;
    assert_eq!(scene.parked().await, (1, 5));
    let draining = scene.drain();
    scene.until_effects(&[1, 2]).await;
    let resolved = [(dead.id.as_uuid(), first, "resolved"), (all[1].id.as_uuid(), second, "resolved")];
    until_told(&scene, &resolved).await;
    assert_eq!(scene.inbox(dead.id).await, Some(("done".to_owned(), Some(first))));
    // What waits keeps its time and its attempts.
    assert_eq!((scene.parked().await, scene.handler.calls(all[2].id)), ((1, 3), 1));
    let attempts: i32 =
        sqlx::query_scalar("select attempts from messaging.parked_key").fetch_one(&scene.pool).await.unwrap();
    assert_eq!(attempts, 1);
    draining.stop().await;
}

#[tokio::test]
async fn a_replay_parks_its_key_until_it_is_finished() {
    let scene = Scene::new().await;
    let all = messages(b"k", 2);
    scene.dead(&[all[0].id]).await;
    let replay = Uuid::now_v7();
    scene.replay(&all[0], replay).await;
    scene.deliver(&all).await;
    assert!(scene.effects().await.is_empty(), "handled inline");
    let draining = scene.drain();
    scene.until_effects(&[1, 2]).await;
    scene.until_empty().await;
    draining.stop().await;
    until_told(&scene, &[(all[0].id.as_uuid(), replay, "resolved")]).await;
}

#[tokio::test]
async fn a_replay_has_one_attempt_and_its_failure_changes_nothing_for_the_others() {
    for (act, class) in [(Act::Transient, "transient"), (Act::Permanent, "permanent"), (Act::Panic, "panic")]
    {
        let scene = Scene::new().await;
        let all = messages(b"k", 3);
        scene.dead(&[all[0].id]).await;
        scene.handler.on(all[1].id, Act::TransientOnce);
        scene.deliver(&all[1..]).await;
        scene.handler.on(all[0].id, act);
        scene.replay(&all[0], Uuid::now_v7()).await;
        let draining = scene.drain();
        scene.until_effects(&[2, 3]).await;
        scene.until_empty().await;
        draining.stop().await;
        let dead = scene.published.dead();
        assert_eq!((dead.len(), dead[0].0, dead[0].1, dead[0].3), (1, all[0].id.as_uuid(), class, 1));
        assert_eq!(scene.handler.calls(all[0].id), 1);
        assert_eq!(scene.inbox(all[0].id).await, Some(("dead".to_owned(), None)));
        assert!(scene.published.told().is_empty());
    }
}

#[tokio::test]
async fn a_message_that_was_handled_is_told_as_such_and_has_no_second_effect() {
    let scene = Scene::new().await;
    let all = messages(b"k", 2);
    scene.deliver(&all[..1]).await;
    let (other, same) = (Uuid::now_v7(), Uuid::now_v7());
    scene.replay(&all[0], other).await;
    scene.dead(&[all[1].id]).await;
    let draining = scene.drain();
    until_told(&scene, &[(all[0].id.as_uuid(), other, "already_processed")]).await;
    scene.replay(&all[1], same).await;
    scene.until_effects(&[1, 2]).await;
    scene.until_empty().await;
    // The same replay, delivered again; then another one.
    scene.replay(&all[1], same).await;
    scene.until_empty().await;
    scene.replay(&all[1], other).await;
    let second = all[1].id.as_uuid();
    let told = [
        (all[0].id.as_uuid(), other, "already_processed"),
        (second, same, "resolved"),
        (second, same, "resolved"),
        (second, other, "already_processed"),
    ];
    until_told(&scene, &told).await;
    scene.until_empty().await;
    draining.stop().await;
    assert_eq!(scene.effects().await, [1, 2]);
}

#[tokio::test]
async fn an_outcome_outlives_refusals_and_crashes_and_holds_up_nobody() {
    let mut scene = Scene::new().await;
    scene.park.lease = std::time::Duration::from_millis(300);
    let all = messages(b"k", 2);
    scene.dead(&[all[0].id]).await;
    let replay = Uuid::now_v7();
    scene.replay(&all[0], replay).await;
    scene.published.refuse(true);
    let draining = scene.drain();
    scene.until_effects(&[1]).await;
    scene.deliver(&all[1..]).await;
    scene.until_effects(&[1, 2]).await;
    draining.abort().await;
    assert!(scene.published.told().is_empty());
    // It is told, and the process dies before it hears of the acknowledgement.
    scene.published.refuse(false);
    scene.published.hold(true);
    let draining = scene.drain();
    eventually(async || if scene.published.told().is_empty() { Err(()) } else { Ok(()) }).await;
    draining.abort().await;
    assert_eq!(scene.parked().await, (1, 1));
    scene.published.hold(false);
    let draining = scene.drain();
    scene.until_empty().await;
    draining.stop().await;
    let told = scene.published.told();
    assert!(told.len() >= 2 && told.iter().all(|one| *one == told[0]), "{told:?}");
    assert_eq!((told[0].2.as_str(), scene.effects().await), ("resolved", vec![1, 2]));
}

#[tokio::test]
async fn a_replay_is_handled_while_its_key_is_blocked_and_does_not_release_it() {
    let scene = Scene::new().await;
    let all = messages(b"k", 2);
    scene.handler.on(all[1].id, Act::TransientOnce);
    scene.deliver(&all[1..]).await;
    scene.dead(&[all[0].id]).await;
    sqlx::query("update messaging.parked_key set state = 'blocked'").execute(&scene.pool).await.unwrap();
    scene.replay(&all[0], Uuid::now_v7()).await;
    let draining = scene.drain();
    scene.until_effects(&[1]).await;
    eventually(async || match scene.parked().await {
        (1, 1) => Ok(()),
        other => Err(other),
    })
    .await;
    draining.stop().await;
    assert_eq!(scene.effects().await, [1]);
}

#[tokio::test]
async fn a_replay_that_overtakes_the_burial_of_its_own_message_ends_it() {
    let scene = Scene::new().await;
    let all = messages(b"k", 2);
    scene.handler.on(all[0].id, Act::Transient);
    scene.deliver(&all).await;
    scene.handler.on(all[0].id, Act::Permanent);
    // One failure more, were it counted on from the first.
    scene.handler.on(all[1].id, Act::TransientOnce);
    // The letter is in the topic; its acknowledgement never arrives.
    scene.published.hold(true);
    let dying = scene.drain();
    eventually(async || if scene.published.dead().is_empty() { Err(()) } else { Ok(()) }).await;
    scene.handler.heal(all[0].id);
    scene.published.hold(false);
    let replay = Uuid::now_v7();
    scene.replay(&copy(&all[0]), replay).await;
    let draining = scene.drain();
    until_told(&scene, &[(all[0].id.as_uuid(), replay, "resolved")]).await;
    // At once, and not when the lease of the first copy is over.
    scene.until_effects(&[1, 2]).await;
    scene.until_empty().await;
    dying.abort().await;
    draining.stop().await;
    assert_eq!(scene.inbox(all[0].id).await, Some(("done".to_owned(), Some(replay))));
    assert_eq!(scene.published.dead().len(), 1);
}

#[tokio::test]
async fn a_replay_that_waited_in_a_cluster_with_higher_transaction_numbers_is_handled() {
    let scene = Scene::new().await;
    let one = message(Some(b"k"), 1);
    let replay = Uuid::now_v7();
    scene.replay(&one, replay).await;
    let restored = "update messaging.parked_message set fence = '1152921504606846976'";
    sqlx::query(restored).execute(&scene.pool).await.unwrap();
    let draining = scene.drain();
    until_told(&scene, &[(one.id.as_uuid(), replay, "resolved")]).await;
    draining.stop().await;
}

#[tokio::test]
async fn a_replay_without_a_key_is_parked_alone() {
    let scene = Scene::new().await;
    let one = message(None, 1);
    let replay = Uuid::now_v7();
    scene.replay(&one, replay).await;
    let draining = scene.drain();
    scene.until_effects(&[1]).await;
    scene.until_empty().await;
    draining.stop().await;
    until_told(&scene, &[(one.id.as_uuid(), replay, "resolved")]).await;
}

#[tokio::test]
async fn a_replay_waits_for_what_was_begun_before_its_park_was_there() {
    let scene = Scene::new().await;
    let all = messages(b"k", 1);
    scene.dead(&[all[0].id]).await;
    // A batch that has claimed a live message of the key, and has found no park of it.
    let mut batch = scene.pool.begin().await.unwrap();
    sqlx::query("select pg_current_xact_id()").execute(&mut *batch).await.unwrap();
    let replay = Uuid::now_v7();
    scene.replay(&all[0], replay).await;
    let draining = scene.drain();
    let fenced = async || {
        let fenced = "select count(*) from messaging.parked_message where fence is not null";
        let fenced: i64 = sqlx::query_scalar(fenced).fetch_one(&scene.pool).await.unwrap();
        if fenced == 1 { Ok(()) } else { Err("not looked at") }
    };
    eventually(fenced).await;
    // Others are handled meanwhile: the drainer has looked again and again.
    let other = message(Some(b"other"), 1);
    scene.handler.on(other.id, Act::TransientOnce);
    scene.deliver(std::slice::from_ref(&other)).await;
    let drained = async || if scene.handler.calls(other.id) == 2 { Ok(()) } else { Err("not drained") };
    eventually(drained).await;
    assert_eq!(scene.handler.calls(all[0].id), 0, "beside a transaction that may handle its key");
    batch.commit().await.unwrap();
    until_told(&scene, &[(all[0].id.as_uuid(), replay, "resolved")]).await;
    draining.stop().await;
}
