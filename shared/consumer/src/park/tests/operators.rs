//! The cap, the list and the gauges.

use super::support::{Act, GROUP, Scene, TOPIC, message, messages};
use crate::park::{ParkSettings, Room, gauge, list};

#[tokio::test]
async fn there_is_room_until_a_cap_is_reached() {
    let scene = Scene::new().await;
    for n in 0..3_u8 {
        let all = messages(&[n], 2);
        scene.handler.on(all[0].id, Act::Transient);
        scene.deliver(&all).await;
    }
    for (max_keys, max_rows, left) in [(4, 7, true), (3, 7, false), (4, 6, false)] {
        let settings = ParkSettings { max_keys, max_rows, ..ParkSettings::default() };
        assert_eq!(Room::default().is_left(&scene.pool, GROUP, TOPIC, &settings).await.unwrap(), left);
        assert!(Room::default().is_left(&scene.pool, GROUP, "other", &settings).await.unwrap());
    }
    // The answer is kept for a second.
    let settings = ParkSettings { max_keys: 4, ..ParkSettings::default() };
    let room = Room::default();
    assert!(room.is_left(&scene.pool, GROUP, TOPIC, &settings).await.unwrap());
    let more = message(Some(b"more"), 1);
    scene.handler.on(more.id, Act::Transient);
    scene.deliver(&[more]).await;
    assert!(room.is_left(&scene.pool, GROUP, TOPIC, &settings).await.unwrap());
    waybill_testkit::eventually(async || {
        match room.is_left(&scene.pool, GROUP, TOPIC, &settings).await.unwrap() {
            false => Ok(()),
            true => Err("still room"),
        }
    })
    .await;
}

#[tokio::test]
async fn keys_are_listed_page_by_page_and_counted() {
    let scene = Scene::new().await;
    let nothing = gauge(&scene.pool, GROUP, TOPIC).await.unwrap();
    assert_eq!((nothing.keys, nothing.messages, nothing.oldest_seconds), (0, 0, 0.0));
    let mut heads = Vec::new();
    for n in 0..5_u8 {
        let all = messages(&[n], 1 + i64::from(n));
        scene.handler.on(all[0].id, Act::Transient);
        heads.push(all[0].id.as_uuid());
        scene.deliver(&all).await;
    }
    let keyless = message(None, 1);
    scene.handler.on(keyless.id, Act::Transient);
    scene.deliver(&[keyless]).await;
    sqlx::query("update messaging.parked_key set state = 'blocked' where key = '\\x01'")
        .execute(&scene.pool)
        .await
        .unwrap();

    let (mut after, mut seen) = (0, Vec::new());
    loop {
        let page = list(&scene.pool, Some(GROUP), None, 4, after).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.id;
        seen.extend(page);
    }
    let facts: Vec<_> = seen.iter().map(|key| (key.messages, key.keyless, key.attempts)).collect();
    let expected = [(1, false, 1), (2, false, 1), (3, false, 1), (4, false, 1), (5, false, 1), (1, true, 1)];
    assert_eq!(facts, expected);
    assert_eq!((seen[1].state.as_str(), seen[2].state.as_str()), ("blocked", "waiting"));
    assert!(seen.iter().zip(&heads).all(|(key, head)| key.head == Some(*head)));
    assert!(list(&scene.pool, None, Some("other"), 9, 0).await.unwrap().is_empty());

    let parked = gauge(&scene.pool, GROUP, TOPIC).await.unwrap();
    assert_eq!((parked.keys, parked.blocked, parked.messages), (6, 1, 16));
    assert!(parked.oldest_seconds > 0.0 && parked.oldest_seconds < 60.0);
}
