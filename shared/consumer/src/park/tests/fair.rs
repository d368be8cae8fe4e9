//! What has nothing to do holds up nobody, however much there is of it.

use uuid::Uuid;
use waybill_testkit::eventually;

use super::support::{Act, GROUP, Scene, TOPIC, message};
use crate::park::store;

/// More than are looked up at once.
const MANY: i64 = 60;

/// Replays of as many keys.
async fn replays(scene: &Scene) -> Vec<Uuid> {
    let mut ids = Vec::new();
    for n in 1..=MANY {
        let one = message(Some(&n.to_be_bytes()), n);
        scene.dead(&[one.id]).await;
        scene.replay(&one, Uuid::now_v7()).await;
        ids.push(one.id.as_uuid());
    }
    ids
}

async fn until_told(scene: &Scene, ids: &[Uuid]) {
    eventually(async || {
        let told = scene.published.told();
        let left = ids.iter().filter(|id| !told.iter().any(|(one, ..)| one == *id)).count();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
}

/// A message that is parked now is tried again when its time has come.
async fn others_go_on(scene: &Scene, n: i64) {
    let other = message(Some(format!("other {n}").as_bytes()), n);
    scene.handler.on(other.id, Act::TransientOnce);
    scene.deliver(std::slice::from_ref(&other)).await;
    let drained = async || match scene.handler.calls(other.id) {
        2 => Ok(()),
        calls => Err(calls),
    };
    eventually(drained).await;
}

#[tokio::test]
async fn replays_that_wait_behind_a_long_transaction_hold_up_no_other_key() {
    let scene = Scene::new().await;
    let mut long = scene.pool.begin().await.unwrap();
    sqlx::query("select pg_current_xact_id()").execute(&mut *long).await.unwrap();
    let ids = replays(&scene).await;
    let draining = scene.drain();
    let fenced = async || {
        let left = "select count(*) from messaging.parked_message where fence is null";
        let left: i64 = sqlx::query_scalar(left).fetch_one(&scene.pool).await.unwrap();
        if left == 0 { Ok(()) } else { Err(left) }
    };
    eventually(fenced).await;
    others_go_on(&scene, 100).await;
    assert!(scene.effects().await == [100], "none of the replays");
    long.commit().await.unwrap();
    until_told(&scene, &ids).await;
    scene.until_empty().await;
    draining.stop().await;
}

#[tokio::test]
async fn outcomes_that_cannot_be_told_hold_up_no_other_key() {
    let mut scene = Scene::new().await;
    scene.park.lease = std::time::Duration::from_secs(3);
    let ids = replays(&scene).await;
    scene.published.refuse(true);
    let draining = scene.drain();
    eventually(async || match scene.effects().await.len() {
        60 => Ok(()),
        effects => Err(effects),
    })
    .await;
    others_go_on(&scene, 100).await;
    assert!(scene.published.told().is_empty());
    scene.published.refuse(false);
    until_told(&scene, &ids).await;
    scene.until_empty().await;
    draining.stop().await;
}

#[tokio::test]
async fn many_replays_of_one_key_hide_no_other_key() {
    let scene = Scene::new().await;
    for n in 1..=MANY {
        scene.replay(&message(Some(b"many"), n), Uuid::now_v7()).await;
    }
    scene.replay(&message(Some(b"one"), 1), Uuid::now_v7()).await;
    let (found, _) = store::due(&scene.pool, GROUP, TOPIC, &[], 16).await.unwrap();
    assert_eq!(found.len(), 2);
}
