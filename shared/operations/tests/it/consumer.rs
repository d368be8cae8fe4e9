//! Subscriptions and checks, over the runtime's own handle.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;
use waybill_event::{PointEvent, codec};

use crate::scene::Scene;
use crate::server::fault;

impl Scene {
    async fn check(&self, messages: Value) -> (StatusCode, Value) {
        let body = json!({"topic": "points.v1", "group": "order", "messages": messages});
        self.server.call(&["view"], Method::POST, "/internal/consumer/check", Some(&body)).await
    }
}

fn points() -> PointEvent {
    PointEvent {
        entry_id: Uuid::now_v7(),
        order_id: Uuid::now_v7(),
        customer_id: Uuid::now_v7(),
        attempt_id: None,
        kind: "earned".to_owned(),
        delta: 1,
        available_after: 1,
        reason: None,
        occurred_at: chrono::Utc::now(),
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[tokio::test]
async fn subscriptions_are_shown_without_the_installations_prefix() {
    let scene = Scene::new().await;
    scene.server.needs("view", Method::GET, "/internal/consumer", None).await;
    let (status, body) = scene.server.get("/internal/consumer").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let shown = |n: usize| {
        let one = &body["subscriptions"][n];
        let fields =
            ["topic", "group", "order", "tiers", "replay_safety", "breaker", "parked_keys", "blocked"];
        fields.map(|field| one[field].clone())
    };
    let tiers = json!(["1s", "10s", "1m", "10m"]);
    let first = ["points.v1".into(), "order".into(), "unordered".into(), tiers, "safe".into()];
    assert_eq!(shown(0)[..5], first);
    assert_eq!(shown(0)[5..], ["closed".into(), json!(0), json!([])]);
    let second = ["old.v1".into(), "order".into(), "partition_ordered".into(), json!([]), "never".into()];
    assert_eq!(shown(1)[..5], second);
}

/// Then most of all it is asked what stands still, and why.
#[tokio::test]
async fn subscriptions_are_shown_while_the_database_is_away() {
    let scene = Scene::new().await;
    scene.database.pool.close().await;
    let (status, body) = scene.server.get("/internal/consumer").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let shown = body["subscriptions"].as_array().expect("list");
    assert_eq!(shown.len(), 3);
    for one in shown {
        assert_eq!((&one["breaker"], &one["blocked"]), (&json!("closed"), &json!([])));
        assert_eq!((&one["parked_keys"], &one["parked_messages"]), (&Value::Null, &Value::Null));
    }
}

#[tokio::test]
async fn a_check_tells_the_inbox_and_whether_the_value_can_be_read() {
    let scene = Scene::new().await;
    let [done, dead, fresh, damaged, empty] = [(); 5].map(|()| Uuid::now_v7());
    let replay = Uuid::now_v7();
    sqlx::query(
        "insert into messaging.processed_message (consumer_group, message_id, processed_at, outcome, replay_id)
         values ('test.order', $1, clock_timestamp(), 'done', $3), ('test.order', $2, clock_timestamp(), 'dead', null),
                ('test.other', $4, clock_timestamp(), 'done', null)",
    )
    .bind(done)
    .bind(dead)
    .bind(replay)
    .bind(fresh)
    .execute(&scene.database.pool)
    .await
    .expect("inbox");
    let value = base64(&codec::encode(&points()).expect("encodes"));
    let (status, body) = scene
        .check(json!([
            {"message_id": done, "value": value},
            {"message_id": dead, "value": value},
            {"message_id": fresh, "value": value},
            {"message_id": damaged, "value": base64(b"damaged")},
            {"message_id": empty, "value": null},
        ]))
        .await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let known = |id: Uuid, inbox: Value, replay: Value| json!({"message_id": id, "inbox": inbox, "replay_id": replay, "decodes": true, "decode_error": null});
    let messages = body["messages"].as_array().expect("list");
    assert_eq!(messages[0], known(done, "done".into(), json!(replay)));
    assert_eq!(messages[1], known(dead, "dead".into(), Value::Null));
    assert_eq!(messages[2], known(fresh, Value::Null, Value::Null));
    for (place, id) in [(3, damaged), (4, empty)] {
        let message = &messages[place];
        assert_eq!((&message["message_id"], &message["decodes"]), (&json!(id), &json!(false)));
        assert!(message["decode_error"].as_str().is_some_and(|code| code.starts_with("decode")), "{message}");
    }
}

#[tokio::test]
async fn a_check_needs_no_more_than_looking_and_is_bounded() {
    let scene = Scene::new().await;
    let body = json!({"topic": "points.v1", "group": "order", "messages": []});
    scene.server.needs("view", Method::POST, "/internal/consumer/check", Some(&body)).await;
    let many = |count: usize, value: &str| {
        (0..count).map(|_| json!({"message_id": Uuid::now_v7(), "value": value})).collect::<Value>()
    };
    // Far above the usual limit of a body.
    let (status, body) = scene.check(many(500, &base64(&[7; 4_000]))).await;
    assert_eq!((status, body["messages"].as_array().map(Vec::len)), (StatusCode::OK, Some(500)));
    let answer = scene.check(many(501, "")).await;
    assert_eq!(fault(&answer), (400, "validation-failed", "/messages"));
    let answer = scene.check(many(9, &base64(&vec![7; 1_000_000]))).await;
    assert_eq!(fault(&answer), (413, "payload-too-large", ""));
    assert!(answer.1["detail"].as_str().is_some_and(|detail| detail.contains("8388608")), "{answer:?}");
    // Other routes keep the usual limit.
    let large = json!({"topic": "x".repeat(70_000), "group": "order"});
    assert_eq!(scene.server.post("/internal/consumer/resume", &large).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn a_fault_names_its_field_and_an_unknown_subscription_is_not_found() {
    let scene = Scene::new().await;
    let id = Uuid::now_v7();
    let answer =
        scene.check(json!([{"message_id": id, "value": null}, {"message_id": id, "value": "?"}])).await;
    assert_eq!(fault(&answer), (400, "validation-failed", "/messages/1/value"));
    let answer = scene.check(json!([{"message_id": "7", "value": null}])).await;
    assert_eq!(fault(&answer), (400, "validation-failed", "/messages/0/message_id"));
    let answer = scene.check(json!([{"message_id": id, "value": null, "key": "x"}])).await;
    assert_eq!(fault(&answer), (400, "validation-failed", "/messages/0/key"));
    for (topic, group) in [("points.v1", "point"), ("test.points.v1", "order"), ("points.v1", "test.order")] {
        let body = json!({"topic": topic, "group": group, "messages": []});
        let answer = scene.server.post("/internal/consumer/check", &body).await;
        assert_eq!(fault(&answer), (404, "subscription-not-found", ""), "{topic} {group}");
    }
}
