//! Parked keys and the breaker: how they are asked for, shown and let go.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::scene::Scene;
use crate::server::fault;

const BINARY: &[u8] = &[0xff, 0x00];

impl Scene {
    /// Parks two messages of a key of `keyed.v1`, as its group would; the id of the first one.
    async fn park(&self, key: &[u8], keyless: bool, state: &str) -> Uuid {
        let head = Uuid::now_v7();
        let parked: i64 = sqlx::query_scalar(
            "insert into messaging.parked_key
                 (consumer_group, topic, key, keyless, state, attempts, due_at, parked_at)
             values ('test.order', 'test.keyed.v1', $1, $2, $3, 5, timestamptz 'epoch', timestamptz 'epoch')
             returning id",
        )
        .bind(key)
        .bind(keyless)
        .bind(state)
        .fetch_one(&self.database.pool)
        .await
        .expect("key");
        for (message, code) in [(head, Some("timed_out")), (Uuid::now_v7(), None)] {
            sqlx::query(
                "insert into messaging.parked_message
                     (parked_key_id, consumer_group, message_id, read_from, record_partition, record_offset, headers,
                      parked_at, error_code)
                 values ($1, 'test.order', $2, 'test.keyed.v1', 0, 0, '[]', clock_timestamp(), $3)",
            )
            .bind(parked)
            .bind(message)
            .bind(code)
            .execute(&self.database.pool)
            .await
            .expect("message");
        }
        head
    }

    async fn keys(&self, query: &str) -> (Vec<Value>, Value) {
        let (status, body) = self.server.get(&format!("/internal/consumer/keys{query}")).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        (body["keys"].as_array().expect("list").clone(), body["next"].clone())
    }
}

#[tokio::test]
async fn keys_are_told_as_text_or_as_base64_and_paged() {
    let scene = Scene::new().await;
    scene.server.needs("view", Method::GET, "/internal/consumer/keys", None).await;
    let id = Uuid::now_v7();
    let head = scene.park(b"o-7", false, "blocked").await;
    scene.park(BINARY, false, "waiting").await;
    scene.park(id.as_bytes(), true, "waiting").await;
    let (keys, next) = scene.keys("?topic=keyed.v1&group=order").await;
    let first = json!({
        "topic": "keyed.v1", "group": "order", "key": "o-7", "key_encoding": "utf8", "keyless": false,
        "state": "blocked", "attempts": 5, "due_at": "1970-01-01T00:00:00Z", "parked_at": "1970-01-01T00:00:00Z",
        "messages": 2, "head": head, "error_code": "timed_out",
    });
    assert_eq!((keys.len(), &keys[0], next), (3, &first, Value::Null));
    assert_eq!((&keys[1]["key"], &keys[1]["key_encoding"]), (&json!("/wA="), &json!("base64")));
    assert_eq!((&keys[2]["key_encoding"], &keys[2]["keyless"]), (&json!("base64"), &json!(true)));
    let (_, body) = scene.server.get("/internal/consumer").await;
    let counts = |n: usize| {
        let one = &body["subscriptions"][n];
        (one["topic"].clone(), one["parked_keys"].clone(), one["parked_messages"].clone())
    };
    assert_eq!(counts(2), ("keyed.v1".into(), 3.into(), 6.into()));
    assert_eq!(counts(0), ("points.v1".into(), 0.into(), 0.into()));

    let (page, next) = scene.keys("?limit=2").await;
    assert_eq!(page, keys[..2]);
    let next = next.as_str().expect("more").to_owned();
    assert_eq!(scene.keys(&format!("?limit=2&after={next}")).await, (keys[2..].to_vec(), Value::Null));
    assert_eq!(scene.keys("?topic=points.v1").await.0, [Value::Null; 0]);
}

#[tokio::test]
async fn a_fault_in_a_look_for_keys_names_its_field() {
    let scene = Scene::new().await;
    for (query, field) in [("limit=0", "/limit"), ("limit=501", "/limit"), ("after=x", "/after")] {
        let answer = scene.server.get(&format!("/internal/consumer/keys?{query}")).await;
        assert_eq!(fault(&answer), (400, "validation-failed", field), "{answer:?}");
    }
    for query in ["topic=keyed.v1&group=point", "group=point", "topic=test.keyed.v1"] {
        let answer = scene.server.get(&format!("/internal/consumer/keys?{query}")).await;
        assert_eq!(fault(&answer), (404, "subscription-not-found", ""), "{query}");
    }
}

#[tokio::test]
async fn a_key_is_released_by_its_bytes() {
    let scene = Scene::new().await;
    let path = "/internal/consumer/keys/release";
    let body = |key: &str, encoding: &str, keyless: bool| {
        let (topic, group) = ("keyed.v1", "order");
        json!({"topic": topic, "group": group, "key": key, "key_encoding": encoding, "keyless": keyless})
    };
    scene.server.needs("act", Method::POST, path, Some(&json!({}))).await;
    scene.park(BINARY, false, "blocked").await;
    scene.park(b"o-7", false, "blocked").await;
    scene.park(b"o-8", false, "waiting").await;
    let (released, not) = (json!({"released": true}), json!({"released": false}));
    assert_eq!(scene.server.post(path, &body("/wA=", "base64", true)).await.1, not, "another kind of key");
    assert_eq!(scene.server.post(path, &body("/wA=", "base64", false)).await.1, released);
    assert_eq!(scene.server.post(path, &body("/wA=", "base64", false)).await.1, not, "once");
    assert_eq!(scene.server.post(path, &body("o-8", "utf8", false)).await.1, not, "it is not blocked");
    let short = json!({"topic": "keyed.v1", "group": "order", "key": "o-7"});
    assert_eq!(scene.server.post(path, &short).await.1, released, "text is the usual encoding");
    let (keys, _) = scene.keys("").await;
    assert!(keys.iter().all(|key| key["state"] == "waiting"), "{keys:?}");
    for (wrong, field) in [(body("?", "base64", false), "/key"), (body("x", "hex", false), "/key_encoding")] {
        let answer = scene.server.post(path, &wrong).await;
        assert_eq!(fault(&answer), (400, "validation-failed", field), "{answer:?}");
    }
    let foreign = json!({"topic": "keyed.v1", "group": "point", "key": "o-7"});
    assert_eq!(fault(&scene.server.post(path, &foreign).await), (404, "subscription-not-found", ""));
}

#[tokio::test]
async fn a_subscription_that_was_not_stopped_is_not_resumed() {
    let scene = Scene::new().await;
    let path = "/internal/consumer/resume";
    scene.server.needs("act", Method::POST, path, Some(&json!({}))).await;
    let body = json!({"topic": "points.v1", "group": "order"});
    assert_eq!(scene.server.post(path, &body).await, (StatusCode::OK, json!({"resumed": false})));
    let foreign = json!({"topic": "points.v2", "group": "order"});
    assert_eq!(fault(&scene.server.post(path, &foreign).await), (404, "subscription-not-found", ""));
    let answer = scene.server.post(path, &json!({"topic": "points.v1"})).await;
    assert!(answer.0 == 400 && answer.1.to_string().contains("group"), "{answer:?}");
}
