//! A service that answers as the contract says, and with faults.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use uuid::Uuid;

/// What the service knows, and what is wrong with it.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) safety: &'static str,
    pub(crate) order: &'static str,
    /// Ids that the inbox has as done.
    pub(crate) done: HashSet<Uuid>,
    /// Ids whose value cannot be read.
    pub(crate) undecodable: HashSet<Uuid>,
    /// Ids that it says nothing about.
    pub(crate) unsaid: HashSet<Uuid>,
    /// Answers with this status instead.
    pub(crate) status: Option<StatusCode>,
    /// Fails each act.
    pub(crate) failing: bool,
    /// How long it takes over an act.
    pub(crate) slow: Duration,
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
type Answer = Result<Json<Value>, (StatusCode, Json<Value>)>;

/// A refusal without details.
fn no(status: StatusCode) -> (StatusCode, Json<Value>) {
    (status, Json(Value::Null))
}

/// A refusal of a field.
fn wrong(pointer: &str) -> (StatusCode, Json<Value>) {
    let errors = json!([{"pointer": pointer, "detail": "must be something else"}]);
    let problem =
        json!({"code": "validation-failed", "detail": "the request is not valid", "errors": errors});
    (StatusCode::BAD_REQUEST, Json(problem))
}

impl Services {
    pub(crate) async fn start() -> Self {
        let known = Arc::new(Mutex::new(Known {
            safety: "safe",
            order: "unordered",
            done: HashSet::new(),
            undecodable: HashSet::new(),
            unsaid: HashSet::new(),
            status: None,
            failing: false,
            slow: Duration::ZERO,
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

fn enter(known: &Mutex<Known>, headers: &HeaderMap) -> Result<(), (StatusCode, Json<Value>)> {
    let mut known = known.lock().expect("not poisoned");
    let token = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    known.tokens.insert(token.to_owned());
    known.status.map_or(Ok(()), |status| Err(no(status)))
}

async fn subscriptions(State(known): Shared, headers: HeaderMap) -> Answer {
    enter(&known, &headers)?;
    let (safety, order) = {
        let known = known.lock().expect("not poisoned");
        (known.safety, known.order)
    };
    Ok(Json(json!({"subscriptions": [{
        "topic": "orders.v1", "group": "point", "order": order, "tiers": ["1s"], "replay_safety": safety,
        "breaker": "closed", "breaker_reason": null, "parked_keys": 1, "parked_messages": 2,
        "blocked": [{"topic": "orders.v1", "partition": 1, "reason": "handler", "error": null}], "new_field": 1,
    }]})))
}

async fn check(State(known): Shared, headers: HeaderMap, body: String) -> Answer {
    enter(&known, &headers)?;
    let mut known = known.lock().expect("not poisoned");
    if body.len() > known.most {
        return Err(no(StatusCode::PAYLOAD_TOO_LARGE));
    }
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((&body["topic"], &body["group"]), (&json!("orders.v1"), &json!("point")));
    let messages = body["messages"].as_array().expect("messages");
    assert!(messages.len() <= 500);
    known.checks.push(messages.len());
    let judged: Vec<Value> = messages
        .iter()
        .map(|message| (message, crate::fixture::id(&message["message_id"])))
        .filter(|(_, id)| !known.unsaid.contains(id))
        .map(|(message, id)| {
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

/// What is parked: key, encoding, and whether it stands for one message without key.
const PARKED: [(&str, &str, bool); 2] = [("k-1", "utf8", false), ("/wA=", "base64", true)];

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    topic: Option<String>,
    group: Option<String>,
    limit: Option<usize>,
    after: Option<String>,
}

async fn keys(State(known): Shared, headers: HeaderMap, Query(page): Query<Page>) -> Answer {
    enter(&known, &headers)?;
    let fits = |asked: Option<String>, name: &str| asked.is_none_or(|asked| asked == name);
    if !fits(page.topic, "orders.v1") || !fits(page.group, "point") {
        return Err(no(StatusCode::NOT_FOUND));
    }
    let after = page.after.as_deref().map_or(Ok(0), str::parse::<usize>).map_err(|_| wrong("/after"))?;
    let limit = page.limit.unwrap_or(50);
    let key = |(key, encoding, keyless): &(&str, &str, bool)| {
        json!({
            "topic": "orders.v1", "group": "point", "key": key, "key_encoding": encoding, "keyless": keyless,
            "state": "blocked", "attempts": 5, "due_at": null, "parked_at": "2026-11-30T00:00:00Z", "messages": 2,
        })
    };
    let keys: Vec<_> = PARKED.iter().skip(after).take(limit).map(key).collect();
    let next = (after + keys.len() < PARKED.len()).then(|| (after + keys.len()).to_string());
    Ok(Json(json!({"keys": keys, "next": next})))
}

async fn release(State(known): Shared, headers: HeaderMap, Json(body): Json<Value>) -> Answer {
    enter(&known, &headers)?;
    let (slow, failing) = {
        let known = known.lock().expect("not poisoned");
        (known.slow, known.failing)
    };
    tokio::time::sleep(slow).await;
    if failing {
        return Err(no(StatusCode::CONFLICT));
    }
    if body["key_encoding"] != "utf8" && body["key_encoding"] != "base64" {
        return Err(wrong("/key_encoding"));
    }
    let is = |(key, encoding, keyless): &(&str, &str, bool)| {
        body["key"] == *key && body["key_encoding"] == *encoding && body["keyless"] == *keyless
    };
    let released = PARKED.iter().any(is);
    known.lock().expect("not poisoned").acts.push(("release".to_owned(), body));
    Ok(Json(json!({ "released": released })))
}

#[derive(serde::Deserialize)]
struct TaskPage {
    status: Option<String>,
    limit: Option<usize>,
    before: Option<Uuid>,
}

async fn tasks(State(known): Shared, headers: HeaderMap, Query(page): Query<TaskPage>) -> Answer {
    enter(&known, &headers)?;
    let states = ["pending", "running", "done", "failed", "cancelled"];
    if page.status.is_some_and(|status| !states.contains(&status.as_str())) {
        return Err(wrong("/status"));
    }
    let known = known.lock().expect("not poisoned");
    let mut ids: Vec<_> =
        known.tasks.keys().filter(|id| page.before.is_none_or(|before| **id < before)).collect();
    ids.sort_unstable_by(|a, b| b.cmp(a));
    let (limit, all) = (page.limit.unwrap_or(50), ids.len());
    ids.truncate(limit);
    let next = ids.last().filter(|_| limit < all);
    let tasks: Vec<_> = ids.iter().map(|id| json!({"id": id, "status": known.tasks[*id]})).collect();
    Ok(Json(json!({"tasks": tasks, "next": next})))
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
