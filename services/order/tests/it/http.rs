use std::time::Duration;

use reqwest::Method;
use uuid::Uuid;
use waybill_order::{App, problems};
use waybill_testkit::jwt::Issuer;
use waybill_testkit::{Database, PATIENCE, eventually};

use crate::app::{TestApp, config, order, send};

#[tokio::test]
async fn every_endpoint_needs_a_good_token() {
    let app = TestApp::start().await;
    let (stranger, good) = (Issuer::new(), app.issuer.token(app.customer, "customer"));
    let tampered = {
        let (head, signature) = good.rsplit_once('.').unwrap();
        format!("{head}.{}", signature.chars().rev().collect::<String>())
    };
    let bearer = |token: &str| Some(format!("Bearer {token}"));
    for (what, header) in [
        ("none", None),
        ("empty", Some(String::new())),
        ("other scheme", Some("Basic dXNlcjpwdw==".into())),
        ("no token", Some("Bearer".into())),
        ("garbage", bearer("garbage")),
        ("tampered", bearer(&tampered)),
        ("expired", bearer(&app.issuer.token_for(app.customer, "customer", -3600))),
        ("foreign key", bearer(&stranger.token(app.customer, "customer"))),
        ("unknown scope", bearer(&app.issuer.token(app.customer, "root"))),
        ("unsigned", bearer("eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.")),
    ] {
        for (method, path) in [
            (Method::POST, "/v1/orders"),
            (Method::GET, "/v1/orders"),
            (Method::GET, "/v1/orders/1"),
            (Method::GET, "/v1/products"),
        ] {
            let mut request = app.client.request(method, format!("{}{path}", app.base));
            if let Some(header) = &header {
                request = request.header("Authorization", header);
            }
            let answer = send(request.header("Idempotency-Key", "k").json(&order())).await;
            assert_eq!(answer.status, 401, "{what}: {}", answer.text);
            answer.problem(401, "unauthorized");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
    }
    assert_eq!(app.count("orders").await, 0);
}

#[tokio::test]
async fn health_and_problem_pages_need_no_token() {
    let app = TestApp::start().await;
    let open = async |path: &str| send(app.client.get(format!("{}{path}", app.base))).await;
    assert_eq!(open("/healthz").await.status, 200);
    eventually(async || {
        let ready = open("/readyz").await;
        if ready.status == 200 { Ok(()) } else { Err(ready.text) }
    })
    .await;
    for page in problems::PAGES {
        let answer = open(&format!("/problems/{}", page.slug)).await;
        assert!(answer.status == 200 && answer.text.contains(page.meaning), "{}", page.slug);
        assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"));
    }
    assert!(open("/problems").await.text.contains("idempotency-key-reused"));
    open("/problems/none").await.problem(404, "not-found");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let app = TestApp::start().await;
    app.get("/").await.problem(404, "not-found");
    app.get("/v1/order").await.problem(404, "not-found");
    app.get("/metrics").await.problem(404, "not-found");
    send(app.request(Method::PUT, "/v1/orders")).await.problem(405, "method-not-allowed");
    send(app.request(Method::DELETE, &format!("/v1/orders/{}", Uuid::nil())))
        .await
        .problem(405, "method-not-allowed");
}

#[tokio::test]
async fn orders_and_replays_are_counted_on_a_port_of_their_own() {
    let app = TestApp::start().await;
    app.place("k", &order()).await.placed();
    app.place("k", &order()).await.placed();
    let text = send(app.client.get(&app.metrics)).await.text;
    let line = |start: &str| text.lines().any(|line| line.starts_with(start) && !line.ends_with(" 0"));
    assert!(line("waybill_orders_placed_total{payment_method=\"ON_DELIVERY\"}"), "{text}");
    assert!(line("waybill_idempotency_replays_total"), "{text}");
    assert!(text.contains("http_server_request_duration_seconds_count"), "{text}");
}

#[tokio::test]
async fn an_exhausted_pool_is_503_and_not_ready() {
    let settings = [
        "--database-pool-size",
        "1",
        "--database-acquire-timeout",
        "100ms",
        "--database-lock-timeout",
        "60s",
    ];
    let app = TestApp::start_with(&[&settings[..], &["--database-statement-timeout", "60s"]].concat()).await;
    // Holds the one connection: its request waits for the lock of this transaction.
    let mut holder = app.database.pool.begin().await.unwrap();
    sqlx::query("lock table idempotency_key in exclusive mode").execute(&mut *holder).await.unwrap();
    let body = order();
    let waiting = tokio::spawn(app.post("first", &body).send());
    eventually(async || {
        let waits: bool = sqlx::query_scalar(
            "select exists (select 1 from pg_locks l join pg_database d on d.oid = l.database
                where d.datname = current_database() and not l.granted)",
        )
        .fetch_one(&app.database.pool)
        .await
        .unwrap();
        if waits { Ok(()) } else { Err("no one waits") }
    })
    .await;
    let refused = app.place("second", &body).await;
    refused.problem(503, "overloaded");
    eventually(async || {
        let ready = send(app.client.get(format!("{}/readyz", app.base))).await;
        if ready.status == 503 && ready.text.contains("no free connection") {
            Ok(())
        } else {
            Err(ready.text)
        }
    })
    .await;
    holder.rollback().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().status(), 201);
    app.place("second", &body).await.placed();
}

#[tokio::test]
async fn shutdown_ends_running_requests_first() {
    let mut app = TestApp::start().await;
    let mut holder = app.database.pool.begin().await.unwrap();
    sqlx::query("lock table idempotency_key in exclusive mode").execute(&mut *holder).await.unwrap();
    let waiting = tokio::spawn(app.post("k", &order()).send());
    eventually(async || {
        let waits: i64 = sqlx::query_scalar("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
            .fetch_one(&app.database.pool)
            .await
            .unwrap();
        if waits == 1 { Ok(()) } else { Err(waits) }
    })
    .await;
    app.shutdown.cancel();
    eventually(async || {
        match app.client.get(format!("{}/healthz", app.base)).timeout(Duration::from_secs(1)).send().await {
            Err(error) if error.is_connect() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    holder.rollback().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().status(), 201);
    let ended = tokio::time::timeout(PATIENCE, app.running.take().unwrap()).await.expect("ends");
    ended.unwrap().unwrap();
}

#[tokio::test]
async fn wrong_settings_end_the_start_with_a_message() {
    let (issuer, database) = (Issuer::new(), Database::create(&[]).await);
    let fails =
        async |config| format!("{:#}", anyhow::Error::from(App::build(config).await.expect_err("must fail")));
    let message = fails(config(&database.url, &issuer, &[])).await;
    assert!(message.contains("waybill-order migrate"), "{message}");
    let message = fails(config("postgres://waybill:hunter2@127.0.0.1:1/none", &issuer, &[])).await;
    assert!(message.contains("127.0.0.1:1") && !message.contains("hunter2"), "{message}");
    let message = fails(config(&database.url, &issuer, &["--kafka-bootstrap", "nowhere"])).await;
    assert!(message.contains("KAFKA_BOOTSTRAP"), "{message}");
}
