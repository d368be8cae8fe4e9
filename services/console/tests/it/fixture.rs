//! A console in this process, on topics and a database of its own, and dead letters to give it.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::{Args, Command, FromArgMatches};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_console::{App, Config};
use waybill_event::OrderEvent;
use waybill_testkit::jwt::Issuer;
use waybill_testkit::{Database, Topics, eventually};

use crate::services::Services;

/// Source topic.
pub(crate) const SOURCE: &str = "orders.v1";
/// Dead-letter topic of the group `point`.
pub(crate) const DLT: &str = "orders.v1.point.dlt";
/// Replay topic of the group `point`.
pub(crate) const REPLAY: &str = "orders.v1.point.replay";
/// Topic of outcomes.
pub(crate) const OUTCOMES: &str = "dlt.outcomes.v1";

/// What a test needs.
pub(crate) struct Fixture {
    pub(crate) database: Database,
    pub(crate) topics: Arc<Topics>,
    pub(crate) issuer: Issuer,
    pub(crate) services: Services,
}

/// A console that runs in this process.
pub(crate) struct Console {
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
    shutdown: CancellationToken,
    running: Option<JoinHandle<anyhow::Result<()>>>,
}

/// A dead letter, as a consumer would leave it.
#[derive(Debug, Clone)]
pub(crate) struct Dead {
    pub(crate) message_id: Uuid,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) group: &'static str,
    pub(crate) code: &'static str,
    pub(crate) class: &'static str,
    pub(crate) attempt: u32,
    pub(crate) event_type: &'static str,
    pub(crate) origin: (i32, i64),
    pub(crate) trace_id: Option<String>,
    /// Before the consumer's own.
    pub(crate) foreign: Vec<(String, Option<Vec<u8>>)>,
    /// The replay in which it died.
    pub(crate) replay: Option<(Uuid, u32)>,
}

impl Dead {
    pub(crate) fn new(key: &str) -> Self {
        Self {
            message_id: Uuid::now_v7(),
            key: Some(key.as_bytes().to_vec()),
            value: Some(waybill_event::encode(&order()).expect("encodes")),
            group: "point",
            code: "unknown_customer",
            class: "permanent",
            attempt: 1,
            event_type: "waybill.order.placed",
            origin: (0, 0),
            trace_id: None,
            foreign: Vec::new(),
            replay: None,
        }
    }

    /// At this offset of its source.
    pub(crate) fn at(self, offset: i64) -> Self {
        Self { origin: (0, offset), ..self }
    }

    fn headers(&self, topics: &Topics) -> Vec<(String, Option<Vec<u8>>)> {
        let now = waybill_event::time::ce_time(chrono::Utc::now());
        let mut list = self.foreign.clone();
        let mut add = |name: &str, value: String| list.push((name.to_owned(), Some(value.into_bytes())));
        add("ce_id", self.message_id.to_string());
        add("ce_type", self.event_type.to_owned());
        if let Some(trace) = &self.trace_id {
            add("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
        }
        add("waybill-origin-topic", topics.name(SOURCE));
        add("waybill-origin-partition", self.origin.0.to_string());
        add("waybill-origin-offset", self.origin.1.to_string());
        add("waybill-first-failed-at", now.clone());
        add("waybill-group", topics.name(self.group));
        add("waybill-attempt", self.attempt.to_string());
        add("waybill-error-code", self.code.to_owned());
        add("waybill-error-class", self.class.to_owned());
        add("waybill-error-message", format!("no account for message {}", self.message_id));
        add("waybill-failed-at", now);
        if let Some((id, count)) = self.replay {
            add("waybill-replay-id", id.to_string());
            add("waybill-replay-count", count.to_string());
        }
        list
    }

    pub(crate) async fn produce(&self, topics: &Topics) {
        self.produce_to(topics, &format!("{SOURCE}.{}.dlt", self.group)).await;
    }

    pub(crate) async fn produce_to(&self, topics: &Topics, topic: &str) {
        let headers = self.headers(topics);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
        topics.produce_raw(topic, self.key.as_deref(), self.value.as_deref(), &headers).await;
    }
}

impl Fixture {
    /// Topics of the group `point` on `orders.v1`, and a service that consumes as it.
    pub(crate) async fn new() -> Self {
        let topics = Arc::new(Topics::create(&[DLT, REPLAY, OUTCOMES], 2).await);
        Self {
            database: Database::create(&waybill_console::migrators()).await,
            services: Services::start().await,
            topics,
            issuer: Issuer::new(),
        }
    }

    /// Settings of a process.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        [
            ("DATABASE_URL", self.database.url.clone()),
            ("KAFKA_BOOTSTRAP", self.topics.bootstrap.clone()),
            ("TOPIC_PREFIX", self.topics.prefix.clone()),
            ("JWT_JWKS_FILE", self.issuer.jwks_file().display().to_string()),
            ("HTTP_LISTEN", "127.0.0.1:0".to_owned()),
            ("METRICS_LISTEN", "127.0.0.1:0".to_owned()),
            ("CONSOLE_SERVICES", format!("point={}", self.services.url)),
            ("CONSOLE_TOPIC_REFRESH", "300ms".to_owned()),
            ("CONSOLE_REPLAY_LEASE", "4s".to_owned()),
            ("LOG_FORMAT", "json".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// The same with some changed or added, as a configuration.
    pub(crate) fn config(&self, changed: &[(&str, &str)]) -> Config {
        let mut settings = self.settings();
        for (name, value) in changed {
            settings.retain(|(known, _)| known != name);
            settings.push(((*name).to_owned(), (*value).to_owned()));
        }
        let flag = |name: &str| match name {
            "CONSOLE_SERVICES" => "--service".to_owned(),
            "CONSOLE_DLT_PATTERNS" => "--dlt-pattern".to_owned(),
            "JOBS" => "--job".to_owned(),
            name => format!("--{}", name.trim_start_matches("CONSOLE_").to_lowercase().replace('_', "-")),
        };
        let words = settings.iter().filter(|(name, _)| name != "LOG_FORMAT");
        let words = words.flat_map(|(name, value)| [flag(name), value.clone()]);
        let words = ["serve".to_owned()].into_iter().chain(words);
        let matches =
            Config::augment_args(Command::new("serve")).try_get_matches_from(words).expect("settings");
        Config::from_arg_matches(&matches).expect("settings")
    }

    /// Until so many sessions of this database wait for a lock.
    pub(crate) async fn waiting(&self, sessions: i64) {
        eventually(async || {
            let waiting: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity
                 where datname = current_database() and wait_event_type = 'Lock'",
            )
            .fetch_one(&self.database.pool)
            .await
            .expect("counts");
            if waiting >= sessions { Ok(()) } else { Err(waiting) }
        })
        .await;
    }

    pub(crate) async fn console(&self) -> Console {
        self.console_with(&[]).await
    }

    pub(crate) async fn console_with(&self, changed: &[(&str, &str)]) -> Console {
        let app = App::build(self.config(changed)).await.expect("builds");
        let shutdown = CancellationToken::new();
        let address = app.local_addr();
        let running = Some(tokio::spawn(app.run(shutdown.clone())));
        let token = self.issuer.operator(Uuid::now_v7(), &["view", "payload", "act"]);
        Console { address, token, shutdown, running }
    }
}

impl Console {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) async fn ask_as(
        &self,
        token: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> (StatusCode, Value) {
        ask(&self.url(), token, method, path, body).await
    }

    /// The answer to a get, which must be good.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.ask_as(&self.token, Method::GET, path, None).await;
        assert!(status.is_success(), "{path}: {status} {answer}");
        answer
    }

    /// The answer to a post, which must be good.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.ask_as(&self.token, Method::POST, path, Some(body)).await;
        assert!(status.is_success(), "{path}: {status} {answer}");
        answer
    }

    /// Status and code of a post that is refused.
    pub(crate) async fn refused(&self, path: &str, body: &Value) -> (u16, String) {
        let (status, answer) = self.ask_as(&self.token, Method::POST, path, Some(body)).await;
        assert!(!status.is_success(), "{path}: {answer}");
        (status.as_u16(), answer["code"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the index has `count` letters, and gives them.
    pub(crate) async fn letters(&self, count: usize) -> Vec<Value> {
        eventually(async || {
            let page = self.get("/v1/dlt/items?limit=500").await;
            let items = page["items"].as_array().cloned().unwrap_or_default();
            if items.len() == count { Ok(items) } else { Err(items.len()) }
        })
        .await
    }

    /// The item of a message.
    pub(crate) async fn letter(&self, dead: &Dead) -> Value {
        eventually(async || {
            let page = self.get(&format!("/v1/dlt/items?message_id={}", dead.message_id)).await;
            page["items"].get(0).cloned().ok_or("not there")
        })
        .await
    }

    /// Waits for an item's state.
    pub(crate) async fn state(&self, dead: &Dead, state: &str) -> Value {
        eventually(async || {
            let letter = self.letter(dead).await;
            if letter["state"] == state { Ok(letter) } else { Err(letter) }
        })
        .await
    }

    pub(crate) async fn plan(&self, request: &Value) -> Value {
        self.post("/v1/dlt/plans", request).await
    }

    /// Starts a replay of everything.
    pub(crate) async fn replay(&self, plan: &Value, changed: &Value) -> Uuid {
        let mut request = json!({"plan_id": plan["plan_id"], "rate": 500, "canary": 0});
        for (name, value) in changed.as_object().into_iter().flatten() {
            request[name] = value.clone();
        }
        id(&self.post("/v1/dlt/replays", &request).await["replay_id"])
    }

    /// Waits until the run has ended.
    pub(crate) async fn ended(&self, replay: Uuid) -> Value {
        eventually(async || {
            let run = self.get(&format!("/v1/dlt/replays/{replay}")).await;
            if run["state"] == "running" { Err(run) } else { Ok(run) }
        })
        .await
    }

    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        if let Some(running) = self.running.take() {
            running.await.expect("no panic").expect("ends well");
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

pub(crate) async fn ask(
    url: &str,
    token: &str,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> (StatusCode, Value) {
    let client = reqwest::Client::builder().no_proxy().build().expect("client");
    let mut request = client.request(method, format!("{url}{path}")).bearer_auth(token);
    if let Some(body) = body {
        request = request.json(body);
    }
    let answer = request.send().await.expect("answers");
    (answer.status(), answer.json().await.unwrap_or_default())
}

pub(crate) fn id(value: &Value) -> Uuid {
    value.as_str().expect("text").parse().expect("a UUID")
}

pub(crate) fn everything() -> Value {
    json!({"all": true, "limit": 10_000})
}

pub(crate) fn order() -> OrderEvent {
    OrderEvent {
        order_id: Uuid::now_v7(),
        version: 1,
        r#type: "placed".to_owned(),
        status: "CONFIRMED".to_owned(),
        customer_id: Uuid::now_v7(),
        currency: "KRW".to_owned(),
        items: Vec::new(),
        total: 10_000,
        payment_method: "CARD".to_owned(),
        attempt: None,
        points_used: 0,
        paid: 0,
        refunded: 0,
        earn_base: 0,
        earn_rate_bp: 100,
        expires_at: None,
        reason: None,
        occurred_at: chrono::Utc::now(),
    }
}
