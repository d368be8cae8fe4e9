//! Fills 200,000 dead letters through the real index and says how long lists, filters, a plan of 10,000 and a replay
//! take. Figures, not a test: `cargo run --release -p waybill-console --example many -- [letters [replayed]]` with DATABASE_URL and
//! KAFKA_BOOTSTRAP set. It makes a database and topics of its own, and takes them away.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a program for figures: it ends at the first fault"
)]

use std::time::{Duration, Instant};

use axum::routing::{get, post};
use axum::{Json, Router};
use clap::{Args, Command, FromArgMatches};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rdkafka::ClientConfig;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_console::{App, Config};
use waybill_event::{ReplayOutcome, encode};
use waybill_testkit::jwt::Issuer;
use waybill_testkit::{Database, Topics};

const SOURCE: &str = "orders.v1";
const DLT: &str = "orders.v1.point.dlt";
const REPLAY: &str = "orders.v1.point.replay";
const CODES: [&str; 5] = ["unknown_customer", "timeout", "conflict", "decode_malformed", "limit"];

#[tokio::main]
async fn main() {
    let letters: usize = std::env::args().nth(1).map_or(200_000, |text| text.parse().expect("a number"));
    let topics = Topics::create(&[DLT, REPLAY, "dlt.outcomes.v1"], 4).await;
    let database = Database::create(&waybill_console::migrators()).await;
    let issuer = Issuer::new();
    let service = service().await;
    let began = Instant::now();
    fill(&topics, letters).await;
    println!("filled    {letters} letters in {:.1} s", began.elapsed().as_secs_f64());

    let app = App::build(config(&database, &topics, &issuer, &service)).await.expect("builds");
    let url = format!("http://{}", app.local_addr());
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(app.run(shutdown.clone()));
    let console = Console { url, token: issuer.operator(Uuid::now_v7(), &["view", "payload", "act"]) };
    let (began, mut peak) = (Instant::now(), 0);
    loop {
        let done: i64 =
            sqlx::query_scalar("select count(*) from console.item").fetch_one(&database.pool).await.unwrap();
        peak = peak.max(rss());
        if done as usize >= letters {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let took = began.elapsed().as_secs_f64();
    println!("indexed   {:.0} letters/s, {:.1} s, RSS at most {peak} MB", letters as f64 / took, took);

    for (name, path) in [
        ("topics", "/v1/dlt/topics".to_owned()),
        ("groups", "/v1/dlt/groups".to_owned()),
        ("newest", "/v1/dlt/items?limit=50".to_owned()),
        ("by group", "/v1/dlt/items?group=point".to_owned()),
        ("by topic", "/v1/dlt/items?topic=orders.v1".to_owned()),
        ("by key", "/v1/dlt/items?key=k77".to_owned()),
        ("by id", format!("/v1/dlt/items?message_id={}", Uuid::now_v7())),
        ("by trace", "/v1/dlt/items?trace_id=4bf92f3577b34da6a3ce929d0e0e4736".to_owned()),
        ("by code", "/v1/dlt/items?error_code=timeout".to_owned()),
        ("by class", "/v1/dlt/items?error_class=transient".to_owned()),
        ("by type", "/v1/dlt/items?event_type=waybill.order.type3".to_owned()),
        ("by state", "/v1/dlt/items?state=resolved".to_owned()),
        ("by time", "/v1/dlt/items?since=2020-01-01T00:00:00Z&until=2021-01-01T00:00:00Z".to_owned()),
        ("attempts", "/v1/dlt/items?min_attempts=6".to_owned()),
        (
            "together",
            "/v1/dlt/items?error_code=limit&event_type=waybill.order.type1&max_attempts=1&key=k5".to_owned(),
        ),
    ] {
        let mut worst = Duration::ZERO;
        for _ in 0..3 {
            let began = Instant::now();
            console.ask(reqwest::Method::GET, &path, None).await;
            worst = worst.max(began.elapsed());
        }
        println!("{name:<9} {:.3} s (the slowest of three)", worst.as_secs_f64());
    }
    let began = Instant::now();
    let all = json!({"all": true, "limit": 10_000.min(letters)});
    let plan = console.ask(reqwest::Method::POST, "/v1/dlt/plans", Some(&all)).await;
    println!("plan      {} letters in {:.2} s", plan["ready"], began.elapsed().as_secs_f64());

    replay(
        &topics,
        &console,
        std::env::args().nth(2).map_or(3_000, |text| text.parse().expect("a number")).min(letters),
    )
    .await;
    println!("RSS       {} MB now", rss());
    shutdown.cancel();
    running.await.unwrap().unwrap();
}

struct Console {
    url: String,
    token: String,
}

impl Console {
    async fn ask(&self, method: reqwest::Method, path: &str, body: Option<&Value>) -> Value {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut request = client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap());
        answer.json().await.unwrap()
    }
}

async fn fill(topics: &Topics, letters: usize) {
    let producer = topics.producer();
    let (topic, source, group) = (topics.name(DLT), topics.name(SOURCE), topics.name("point"));
    let now = waybill_event::time::ce_time(chrono::Utc::now());
    let mut sent = FuturesUnordered::new();
    for n in 0..letters {
        let (key, value) = (format!("k{}", n % 50_000), vec![b'v'; 300]);
        let list = [
            ("ce_id", Uuid::now_v7().to_string()),
            ("ce_type", format!("waybill.order.type{}", n % 8)),
            ("traceparent", format!("00-{:032x}-00f067aa0ba902b7-01", n + 1)),
            ("waybill-origin-topic", source.clone()),
            ("waybill-origin-partition", (n % 4).to_string()),
            ("waybill-origin-offset", (n / 4).to_string()),
            ("waybill-group", group.clone()),
            ("waybill-attempt", (n % 5 + 1).to_string()),
            ("waybill-error-code", CODES[n % CODES.len()].to_owned()),
            ("waybill-error-class", if n % 2 == 0 { "transient" } else { "permanent" }.to_owned()),
            ("waybill-error-message", format!("letter {n} could not be handled")),
            ("waybill-failed-at", now.clone()),
        ];
        let headers = list.iter().fold(OwnedHeaders::new(), |all, (name, value)| {
            all.insert(Header { key: name, value: Some(value.as_bytes()) })
        });
        let (producer, topic) = (producer.clone(), topic.clone());
        sent.push(async move {
            let record = FutureRecord::to(&topic).key(&key).payload(&value).headers(headers);
            producer.send(record, Duration::from_secs(60)).await.expect("acknowledged");
        });
        while sent.len() >= 5_000 {
            sent.next().await;
        }
    }
    while sent.next().await.is_some() {}
}

/// At the cap, with a consumer that resolves at once.
async fn replay(topics: &Topics, console: &Console, letters: usize) {
    let all = json!({"all": true, "limit": letters});
    let plan = console.ask(reqwest::Method::POST, "/v1/dlt/plans", Some(&all)).await;
    let request = json!({"plan_id": plan["plan_id"], "rate": 500, "canary": 1});
    let began = Instant::now();
    let run = console.ask(reqwest::Method::POST, "/v1/dlt/replays", Some(&request)).await;
    let path = format!("/v1/dlt/replays/{}", run["replay_id"].as_str().unwrap());
    let resolving = tokio::spawn(resolve(
        consumer(topics),
        topics.producer(),
        [topics.name("point"), topics.name(SOURCE), topics.name("dlt.outcomes.v1")],
    ));
    loop {
        let run = console.ask(reqwest::Method::GET, &path, None).await;
        if run["state"] != "running" {
            let took = began.elapsed().as_secs_f64();
            let good = run["progress"]["resolved"].as_i64().unwrap();
            println!(
                "replayed  {good} of {letters} in {took:.1} s, {:.0}/s with outcomes (cap 500)",
                good as f64 / took
            );
            resolving.abort();
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Reads on, so that nothing here grows with what was replayed.
fn consumer(topics: &Topics) -> StreamConsumer {
    let mut config = ClientConfig::new();
    config.extend(topics.client_settings());
    config.set("group.id", topics.name("point")).set("auto.offset.reset", "earliest");
    let consumer: StreamConsumer = config.set("enable.auto.commit", "false").create().unwrap();
    consumer.subscribe(&[&topics.name(REPLAY)]).unwrap();
    consumer
}

async fn resolve(consumer: StreamConsumer, producer: FutureProducer, [group, source, outcomes]: [String; 3]) {
    loop {
        let record = consumer.recv().await.unwrap();
        let headers = record.headers().unwrap();
        let header = |name: &str| {
            let value = headers.iter().find(|header| header.key == name).and_then(|header| header.value);
            Uuid::parse_str(std::str::from_utf8(value.unwrap()).unwrap()).unwrap()
        };
        let outcome = ReplayOutcome {
            message_id: header("ce_id"),
            replay_id: header("waybill-replay-id"),
            consumer_group: group.clone(),
            topic: source.clone(),
            outcome: "resolved".to_owned(),
            occurred_at: chrono::Utc::now(),
        };
        let (key, value) = (outcome.message_id.to_string(), encode(&outcome).unwrap());
        let record = FutureRecord::to(&outcomes).key(&key).payload(&value);
        // On its way; the run says whether it arrived.
        drop(producer.send_result(record).map_err(|(error, _)| error).unwrap());
    }
}

async fn service() -> String {
    let subscription = json!({
        "topic": SOURCE, "group": "point", "order": "unordered", "replay_safety": "safe", "breaker": "closed",
    });
    let consumer = Json(json!({ "subscriptions": [subscription] }));
    let check = |Json(body): Json<Value>| async move {
        let known =
            |message: &Value| json!({"message_id": message["message_id"], "inbox": "dead", "decodes": true});
        let messages: Vec<_> = body["messages"].as_array().unwrap().iter().map(known).collect();
        Json(json!({ "messages": messages }))
    };
    let routes = Router::new()
        .route("/internal/consumer", get(|| async { consumer }))
        .route("/internal/consumer/check", post(check));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    url
}

fn config(database: &Database, topics: &Topics, issuer: &Issuer, service: &str) -> Config {
    let (jwks, service) = (issuer.jwks_file().display().to_string(), format!("point={service}"));
    let words = [
        "serve",
        "--database-url",
        &database.url,
        "--kafka-bootstrap",
        &topics.bootstrap,
        "--topic-prefix",
        &topics.prefix,
        "--jwt-jwks-file",
        &jwks,
        "--http-listen",
        "127.0.0.1:0",
        "--metrics-listen",
        "127.0.0.1:0",
        "--service",
        &service,
    ];
    let matches = Config::augment_args(Command::new("serve")).try_get_matches_from(words).expect("settings");
    Config::from_arg_matches(&matches).expect("settings")
}

/// Resident memory of this process, in MB.
fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kb = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kb.unwrap_or(0) / 1024
}
