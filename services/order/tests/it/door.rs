use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use uuid::Uuid;
use waybill_testkit::eventually;

use crate::app::{TestApp, order, send};

#[tokio::test]
async fn a_principal_that_calls_too_often_is_429_and_others_are_not() {
    let app = TestApp::start_with(&["--rate-limit", "1", "--rate-limit-burst", "5"]).await;
    for _ in 0..5 {
        assert_eq!(app.get("/v1/products").await.status, 200);
    }
    let refused = app.get("/v1/products").await;
    refused.problem(429, "rate-limited");
    let after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=2).contains(&after), "{after}");
    let other = app.request_as(Uuid::new_v4(), "customer", Method::GET, "/v1/products");
    assert_eq!(send(other).await.status, 200);
    // A stranger is not counted, and is told nothing.
    send(app.client.get(format!("{}/v1/products", app.base))).await.problem(401, "unauthorized");
    eventually(async || {
        let answer = app.get("/v1/products").await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text) }
    })
    .await;
}

#[tokio::test]
async fn the_rate_limit_can_be_switched_off() {
    let app = TestApp::start_with(&["--rate-limit", "0", "--rate-limit-burst", "1"]).await;
    // Less than what may hold or wait for a connection.
    let answers = join_all((0..250).map(|_| app.get("/v1/orders"))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
}

#[tokio::test]
async fn a_full_queue_is_503_before_the_body_is_looked_at() {
    let settings = ["--database-pool-size", "1", "--database-max-waiting", "2"];
    let slow = ["--database-acquire-timeout", "60s", "--database-lock-timeout", "60s"];
    let more = ["--database-statement-timeout", "60s"];
    let app = TestApp::start_with(&[&settings[..], &slow, &more].concat()).await;
    let mut holder = app.database.pool.begin().await.unwrap();
    sqlx::query("lock table idempotency_key in exclusive mode").execute(&mut *holder).await.unwrap();
    let body = order();
    // One holds the connection, two wait for it.
    let post = |key: &str| tokio::spawn(app.post(key, &body).send());
    let mut waiting = vec![post("first")];
    eventually(async || {
        let blocked: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
        .fetch_one(&app.database.pool)
        .await
        .unwrap();
        if blocked == 1 { Ok(()) } else { Err(blocked) }
    })
    .await;
    waiting.extend([post("second"), post("third")]);
    eventually(async || {
        // Neither token, key nor body: all of them would be refused, each for its reason.
        let request = app.client.post(format!("{}/v1/orders", app.base)).body("not JSON");
        let answer = send(request.timeout(Duration::from_secs(5))).await;
        if answer.status == 503 { Ok(answer) } else { Err(answer.text) }
    })
    .await
    .problem(503, "overloaded");
    // The deeper, the later.
    let mut last = String::new();
    for _ in 0..20 {
        let answer = app.get("/v1/products").await;
        answer.problem(503, "overloaded");
        last = answer.header("retry-after").unwrap().to_owned();
    }
    assert_eq!(last, "10");
    holder.rollback().await.unwrap();
    for answer in join_all(waiting).await {
        assert_eq!(answer.unwrap().unwrap().status(), 201);
    }
    app.place("after", &body).await.placed();
}

#[tokio::test]
async fn what_the_client_cannot_read_is_406() {
    let app = TestApp::start().await;
    let accept =
        async |value: &str| send(app.request(Method::GET, "/v1/orders").header("Accept", value)).await;
    accept("text/html").await.problem(406, "not-acceptable");
    accept("application/json;q=0").await.problem(406, "not-acceptable");
    assert_eq!(accept("text/html, */*;q=0.1").await.status, 200);
    let post = app.post("k", &order()).header("Accept", "application/xml");
    send(post).await.problem(406, "not-acceptable");
    assert_eq!(app.count("orders").await, 0);
}

#[tokio::test]
async fn an_order_is_read_again_only_when_it_has_changed() {
    let app = TestApp::start().await;
    let placed = app.place("k", &order()).await.placed();
    let path = format!("/v1/orders/{}", placed["id"].as_str().unwrap());
    for (tags, known) in [
        (&["\"1\""][..], true),
        (&["W/\"1\""], true),
        (&["*"], true),
        (&["\"7\", W/\"8\" ,\"1\""], true),
        (&["\"7\"", "\"1\""], true),
        (&["\"2\""], false),
        (&["1"], false),
        (&["\"11\""], false),
        (&[""], false),
    ] {
        for method in [Method::GET, Method::HEAD] {
            let mut request = app.request(method.clone(), &path);
            for tag in tags {
                request = request.header("If-None-Match", *tag);
            }
            let answer = send(request).await;
            assert_eq!(answer.status, if known { 304 } else { 200 }, "{tags:?}");
            assert_eq!(answer.header("etag"), Some("\"1\""));
            assert_eq!(answer.header("cache-control"), Some("no-store"));
            assert_eq!(answer.text.is_empty(), known || method == Method::HEAD, "{tags:?}");
        }
    }
    app.execute("update orders set version = 2").await;
    let changed = send(app.request(Method::GET, &path).header("If-None-Match", "\"1\"")).await;
    assert_eq!((changed.status.as_u16(), changed.header("etag")), (200, Some("\"2\"")));
    // Another customer's order is not there, whatever is asked of it.
    let other = app.request_as(Uuid::new_v4(), "customer", Method::GET, &path).header("If-None-Match", "*");
    send(other).await.problem(404, "order-not-found");
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let app = TestApp::start().await;
    for path in ["/v1/orders", "/v1/products", "/healthz", "/problems", "/openapi.json"] {
        let (head, get) = (send(app.request(Method::HEAD, path)).await, app.get(path).await);
        assert_eq!((head.status, head.text.as_str()), (get.status, ""), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
        assert_eq!(head.header("content-length"), get.header("content-length"), "{path}");
    }
    let head = send(app.request(Method::HEAD, "/v1/orders/none")).await;
    assert_eq!((head.status.as_u16(), head.header("content-type")), (404, Some("application/problem+json")));
}
