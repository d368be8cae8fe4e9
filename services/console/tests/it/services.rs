//! A service that answers as the contract says, and with faults.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use uuid::Uuid;

/// What the service knows, and what is wrong with it.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) safety: &'static str,
    /// Ids that the inbox has as done.
    pub(crate) done: HashSet<Uuid>,
    /// Ids whose value cannot be read.
    pub(crate) undecodable: HashSet<Uuid>,
    /// Answers with this status instead.
    pub(crate) status: Option<StatusCode>,
    /// Bodies over this many bytes are refused.
    pub(crate) most: usize,
    /// Messages of each check.
    pub(crate) checks: Vec<usize>,
    /// Tokens that were sent along.
    pub(crate) tokens: HashSet<String>,
    /// Paths and bodies of acts.
    pub(crate) acts: Vec<(String, Value)>,
    pub(crate) tasks: HashMap<Uuid, &'static str>,
}

#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) url: String,
    pub(crate) known: Arc<Mutex<Known>>,
    server: tokio::task::JoinHandle<()>,
}

type Shared = State<Arc<Mutex<Known>>>;
type Answer = Result<Json<Value>, StatusCode>;

impl Services {
    pub(crate) async fn start() -> Self {
        let known = Arc::new(Mutex::new(Known {
            safety: "safe",
            done: HashSet::new(),
            undecodable: HashSet::new(),
            status: None,
            most: 64 << 10,
            checks: Vec::new(),
            tokens: HashSet::new(),
            acts: Vec::new(),
            tasks: HashMap::new(),
        }));
        let routes = Router::new()
            .route("/internal/consumer", get(subscriptions))
            .route("/internal/consumer/check", post(check))
            .route("/internal/consumer/resume", post(resume))
            .route("/internal/consumer/keys", get(keys))
            .route("/internal/consumer/keys/release", post(release))
            .route("/internal/tasks", get(tasks))
            .route("/internal/tasks/{id}/{verb}", post(task))
            .with_state(known.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let server = tokio::spawn(async move { axum::serve(listener, routes).await.expect("serves") });
        Self { url, known, server }
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.known.lock().expect("not poisoned"));
    }

    pub(crate) fn stop(&self) {
        self.server.abort();
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn enter(known: &Mutex<Known>, headers: &HeaderMap) -> Result<(), StatusCode> {
    let mut known = known.lock().expect("not poisoned");
    let token = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    known.tokens.insert(token.to_owned());
    known.status.map_or(Ok(()), Err)
}

async fn subscriptions(State(known): Shared, headers: HeaderMap) -> Answer {
    enter(&known, &headers)?;
    let safety = known.lock().expect("not poisoned").safety;
    Ok(Json(json!({"subscriptions": [{
        "topic": "orders.v1", "group": "point", "order": "unordered", "tiers": ["1s"], "replay_safety": safety,
        "breaker": "closed", "breaker_reason": null, "parked_keys": 1, "parked_messages": 2,
        "blocked": [{"topic": "orders.v1", "partition": 1, "reason": "handler", "error": null}], "new_field": 1,
    }]})))
}

async fn check(State(known): Shared, headers: HeaderMap, body: String) -> Answer {
    enter(&known, &headers)?;
    let mut known = known.lock().expect("not poisoned");
    if body.len() > known.most {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((&body["topic"], &body["group"]), (&json!("orders.v1"), &json!("point")));
    let messages = body["messages"].as_array().expect("messages");
    assert!(messages.len() <= 500);
    known.checks.push(messages.len());
    let judged: Vec<Value> = messages
        .iter()
        .map(|message| {
            let id: Uuid = crate::fixture::id(&message["message_id"]);
            let readable = !known.undecodable.contains(&id) && !message["value"].is_null();
            json!({
                "message_id": id,
                "inbox": if known.done.contains(&id) { "done" } else { "dead" },
                "replay_id": null,
                "decodes": readable,
                "decode_error": if readable { Value::Null } else { "malformed".into() },
            })
        })
        .collect();
    Ok(Json(json!({ "messages": judged })))
}

async fn resume(State(known): Shared, headers: HeaderMap, Json(body): Json<Value>) -> Answer {
    enter(&known, &headers)?;
    known.lock().expect("not poisoned").acts.push(("resume".to_owned(), body));
    Ok(Json(json!({"resumed": true})))
}

async fn keys(State(known): Shared, headers: HeaderMap) -> Answer {
    enter(&known, &headers)?;
    Ok(Json(json!({"keys": [{
        "topic": "orders.v1", "group": "point", "key": "k-1", "key_encoding": "utf8", "keyless": false,
        "state": "blocked", "attempts": 5, "due_at": null, "parked_at": "2026-11-30T00:00:00Z", "messages": 2,
    }], "next": null})))
}

async fn release(State(known): Shared, headers: HeaderMap, Json(body): Json<Value>) -> Answer {
    enter(&known, &headers)?;
    let released = body["key"] == "k-1";
    known.lock().expect("not poisoned").acts.push(("release".to_owned(), body));
    Ok(Json(json!({ "released": released })))
}

async fn tasks(State(known): Shared, headers: HeaderMap) -> Answer {
    enter(&known, &headers)?;
    let known = known.lock().expect("not poisoned");
    let tasks: Vec<_> = known.tasks.iter().map(|(id, status)| json!({"id": id, "status": status})).collect();
    Ok(Json(json!({"tasks": tasks, "next": null})))
}

async fn task(State(known): Shared, headers: HeaderMap, Path((id, verb)): Path<(Uuid, String)>) -> Answer {
    enter(&known, &headers)?;
    let mut known = known.lock().expect("not poisoned");
    let verdict = match (known.tasks.get(&id), verb.as_str()) {
        (None, _) => "unknown",
        (Some(&"failed"), "retry") => "retried",
        (Some(_), _) => "refused",
    };
    if verdict == "retried" {
        known.tasks.insert(id, "pending");
    }
    Ok(Json(json!({ "verdict": verdict })))
}
