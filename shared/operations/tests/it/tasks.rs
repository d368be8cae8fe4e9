//! Tasks: listed, paged, retried and cancelled.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;
use waybill_task::{New, TaskId, Tasks};
use waybill_testkit::Database;

use crate::server::{Server, fault};

struct Scene {
    database: Database,
    server: Server,
}

impl Scene {
    async fn new() -> Self {
        let database = Database::create(&[waybill_task::migrator()]).await;
        let pool = database.pool.clone();
        let server = Server::start(|verifier| waybill_operations::tasks::router(pool, verifier).into()).await;
        Self { database, server }
    }

    async fn enqueue(&self, kind: &str, key: &str) -> TaskId {
        let mut tx = self.database.pool.begin().await.expect("begins");
        let new = New::of(kind, json!({"secret": 7})).key(key);
        let id = Tasks::new().enqueue(&mut tx, &new).await.expect("enqueues");
        tx.commit().await.expect("commits");
        id
    }

    /// As an attempt would leave it; what runs has its lease.
    async fn set(&self, id: TaskId, status: &str) {
        sqlx::query(
            "update messaging.task set status = $2, attempts = 3, last_error = 'no such server',
                 token = case when $2 = 'running' then gen_random_uuid() end,
                 run_at = case when $2 = 'running' then messaging.task_now() + interval '2 min' else run_at end
             where id = $1",
        )
        .bind(id.as_uuid())
        .bind(status)
        .execute(&self.database.pool)
        .await
        .expect("sets");
    }

    async fn ids(&self, query: &str) -> (Vec<String>, Value) {
        let (status, body) = self.server.get(&format!("/internal/tasks{query}")).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let id = |task: &Value| task["id"].as_str().expect("id").to_owned();
        (body["tasks"].as_array().expect("list").iter().map(id).collect(), body["next"].clone())
    }

    async fn verb(&self, id: impl std::fmt::Display, verb: &str) -> Value {
        let (status, body) = self.server.post(&format!("/internal/tasks/{id}/{verb}"), &json!({})).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        body
    }
}

#[tokio::test]
async fn tasks_are_filtered_and_paged_without_their_payload() {
    let scene = Scene::new().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(scene.enqueue(if n == 0 { "mail" } else { "send" }, "o-1").await.to_string());
    }
    ids.reverse();
    scene.set(ids[0].parse::<Uuid>().expect("id").into(), "failed").await;
    assert_eq!(scene.ids("").await, (ids.clone(), Value::Null));
    assert_eq!(scene.ids("?kind=mail").await.0, ids[4..]);
    assert_eq!(scene.ids("?status=failed&key=o-1").await.0, ids[..1]);
    assert_eq!(scene.ids("?key=o-2").await.0, [""; 0]);
    let (first, next) = scene.ids("?limit=2").await;
    assert_eq!((first, &next), (ids[..2].to_vec(), &json!(ids[1])));
    let (second, next) = scene.ids(&format!("?limit=2&before={}", ids[1])).await;
    assert_eq!((second, &next), (ids[2..4].to_vec(), &json!(ids[3])));
    let (_, body) = scene.server.get("/internal/tasks?status=failed").await;
    let task = &body["tasks"][0];
    assert_eq!(
        (&task["kind"], &task["status"], &task["attempts"]),
        (&json!("send"), &json!("failed"), &json!(3))
    );
    assert_eq!((&task["last_error"], &task["key"]), (&json!("no such server"), &json!("o-1")));
    assert!(!body.to_string().contains("secret"), "{body}");
}

#[tokio::test]
async fn each_verb_says_what_became_of_it() {
    let scene = Scene::new().await;
    let id = scene.enqueue("send", "o-1").await;
    for (state, verb, answer) in [
        ("failed", "retry", json!({"verdict": "retried"})),
        ("pending", "cancel", json!({"verdict": "cancelled"})),
        ("running", "cancel", json!({"verdict": "requested"})),
        ("running", "retry", json!({"verdict": "refused", "status": "running"})),
        ("done", "cancel", json!({"verdict": "refused", "status": "done"})),
    ] {
        scene.set(id, state).await;
        assert_eq!(scene.verb(id, verb).await, answer, "{verb} {state}");
    }
    assert_eq!(scene.verb(Uuid::now_v7(), "retry").await, json!({"verdict": "unknown"}));
}

#[tokio::test]
async fn the_payload_is_for_those_who_may_see_it() {
    let scene = Scene::new().await;
    let path = format!("/internal/tasks/{}/payload", scene.enqueue("send", "o-1").await);
    scene.server.needs("payload", Method::GET, &path, None).await;
    let answer = scene.server.call(&["payload"], Method::GET, &path, None).await;
    assert_eq!(answer, (StatusCode::OK, json!({"payload": {"secret": 7}})));
    let unknown = format!("/internal/tasks/{}/payload", Uuid::now_v7());
    let answer = scene.server.call(&["payload"], Method::GET, &unknown, None).await;
    assert_eq!(fault(&answer), (404, "task-not-found", ""));
}

#[tokio::test]
async fn callers_without_the_role_change_and_see_nothing() {
    let scene = Scene::new().await;
    let id = scene.enqueue("send", "o-1").await;
    scene.set(id, "failed").await;
    scene.server.needs("view", Method::GET, "/internal/tasks", None).await;
    for verb in ["retry", "cancel"] {
        let path = format!("/internal/tasks/{id}/{verb}");
        for roles in [&["view"][..], &["view", "payload"]] {
            assert_eq!(scene.server.call(roles, Method::POST, &path, None).await.0, StatusCode::FORBIDDEN);
        }
        assert_eq!(scene.ids("?status=failed").await.0, [id.to_string()], "nothing was done");
    }
    for verb in ["retry", "cancel"] {
        scene.server.needs("act", Method::POST, &format!("/internal/tasks/{id}/{verb}"), None).await;
    }
}

#[tokio::test]
async fn a_fault_names_its_field() {
    let scene = Scene::new().await;
    for (query, field) in [
        ("?status=dead", "/status"),
        ("?limit=0", "/limit"),
        ("?limit=501", "/limit"),
        ("?limit=many", "/limit"),
        ("?before=7", "/before"),
        ("?kind=a%00", "/kind"),
        ("?key=%00", "/key"),
    ] {
        let answer = scene.server.get(&format!("/internal/tasks{query}")).await;
        assert_eq!(fault(&answer), (400, "validation-failed", field), "{answer:?}");
    }
    for (query, named) in [("?stauts=failed", "/stauts"), ("?kind=a&kind=b", "/kind")] {
        let answer = scene.server.get(&format!("/internal/tasks{query}")).await;
        assert_eq!(fault(&answer), (400, "invalid-request", named), "{answer:?}");
    }
    let answer = scene.server.post("/internal/tasks/7/retry", &json!({})).await;
    assert_eq!(fault(&answer), (400, "validation-failed", "/id"));
    assert_eq!(scene.ids("?limit=500").await.0, [""; 0], "the largest page is taken");
}
