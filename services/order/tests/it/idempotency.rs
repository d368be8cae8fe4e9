//! The case table of idempotency keys.

use std::collections::HashSet;
use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::json;
use uuid::Uuid;
use waybill_testkit::eventually;

use crate::app::{TestApp, order, order_with, send};

#[tokio::test]
async fn a_missing_key_is_400() {
    let app = TestApp::start().await;
    let answer = send(app.request(Method::POST, "/v1/orders").json(&order())).await;
    answer.problem(400, "idempotency-key-missing");
}

#[tokio::test]
async fn a_malformed_key_is_400() {
    let app = TestApp::start().await;
    for key in ["", "\"\"", "\"open", "a b", "\"a\";p=1", &"k".repeat(256)] {
        app.place(key, &order()).await.problem(400, "idempotency-key-invalid");
    }
    app.post("a", &order())
        .header("Idempotency-Key", "b")
        .send()
        .await
        .map(|r| assert_eq!(r.status(), 400))
        .unwrap();
    let umlaut = reqwest::header::HeaderValue::from_bytes("ä".as_bytes()).unwrap();
    let request = app.request(Method::POST, "/v1/orders").header("Idempotency-Key", umlaut).json(&order());
    send(request).await.problem(400, "idempotency-key-invalid");
    app.place(&"k".repeat(255), &order()).await.placed();
}

#[tokio::test]
async fn a_repeated_request_gets_the_stored_answer() {
    let app = TestApp::start().await;
    let first = app.place("k", &order()).await;
    first.placed();
    assert!(!first.is_replay());
    for _ in 0..3 {
        let again = app.place("k", &order()).await;
        again.placed();
        assert!(again.is_replay());
        assert_eq!(again.text, first.text);
    }
    assert_eq!((app.count("orders").await, app.count("outbox").await), (1, 1));
}

#[tokio::test]
async fn a_replay_does_not_depend_on_what_changed_since() {
    let app = TestApp::start().await;
    let body = order_with(json!({"expectedAmount": 21_000}));
    let first = app.place("k", &body).await;
    first.placed();
    app.execute("update product set unit_price = 1, active = false").await;
    app.execute("update orders set status = 'CANCELLED', version = 9").await;
    let again = app.place("k", &body).await;
    again.placed();
    assert_eq!((again.is_replay(), again.text), (true, first.text));
}

#[tokio::test]
async fn spacing_order_of_members_and_headers_do_not_count() {
    let app = TestApp::start().await;
    let first = app.place("k", &order()).await;
    for body in [
        r#"{ "paymentMethod":"ON_DELIVERY", "items":[ {"quantity":2,"sku":"TEA-100"},{"sku":"MUG-1","quantity":1}],
            "currency":"KRW" }"#,
        r#"{"expectedAmount":null,"items":[{"sku":"\u0054EA-100","quantity":2},{"sku":"MUG-1","quantity":1}],"currency":"KRW","paymentMethod":"ON_DELIVERY"}"#,
    ] {
        let request = app.request(Method::POST, "/v1/orders").header("Idempotency-Key", "k");
        let again = send(request.header("Content-Type", "application/json;charset=utf-8").body(body)).await;
        assert_eq!((again.is_replay(), again.text), (true, first.text.clone()));
    }
}

#[tokio::test]
async fn the_quoted_form_is_the_same_key() {
    let app = TestApp::start().await;
    let first = app.place("8e03978e-40d5-43e8-bc93-6894a57f9324", &order()).await;
    let again = app.place("\"8e03978e-40d5-43e8-bc93-6894a57f9324\"", &order()).await;
    assert_eq!((again.is_replay(), again.text), (true, first.text));
}

#[tokio::test]
async fn another_request_under_the_key_is_422() {
    let app = TestApp::start().await;
    app.place("k", &order()).await.placed();
    for change in [
        json!({"paymentMethod": "CARD"}),
        json!({"expectedAmount": 21_000}),
        json!({"items": [{"sku": "MUG-1", "quantity": 1}, {"sku": "TEA-100", "quantity": 2}]}),
        json!({"items": [{"sku": "TEA-100", "quantity": 3}, {"sku": "MUG-1", "quantity": 1}]}),
    ] {
        app.place("k", &order_with(change)).await.problem(422, "idempotency-key-reused");
    }
    assert_eq!(app.count("orders").await, 1);
}

#[tokio::test]
async fn keys_of_other_principals_are_other_keys() {
    let app = TestApp::start().await;
    let mine = app.place("k", &order()).await.placed();
    let other = app.request_as(Uuid::new_v4(), "customer", Method::POST, "/v1/orders");
    let theirs = send(other.header("Idempotency-Key", "k").json(&order())).await;
    assert!(!theirs.is_replay());
    assert_ne!(theirs.placed()["id"], mine["id"]);
}

#[tokio::test]
async fn a_refusal_stores_nothing() {
    let app = TestApp::start().await;
    let tea = |sku: &str| order_with(json!({"items": [{"sku": sku, "quantity": 1}]}));
    app.place("k", &tea("NEW")).await.problem(400, "validation-failed");
    app.place("k", &order_with(json!({"expectedAmount": 1}))).await.problem(422, "amount-mismatch");
    assert_eq!(app.count("idempotency_key").await, 0);
    app.execute("insert into product values ('NEW', 'new', 100, 'KRW')").await;
    let placed = app.place("k", &tea("NEW")).await;
    placed.placed();
    assert!(!placed.is_replay());
}

#[tokio::test]
async fn a_failure_rolls_everything_back_and_the_repetition_is_carried_out() {
    let app = TestApp::start().await;
    app.execute("alter table order_item add constraint test_full check (quantity < 0) not valid").await;
    let problem = app.place("k", &order()).await.problem(500, "internal-error");
    assert!(!problem.to_string().contains("test_full"), "the cause stays hidden: {problem}");
    for table in ["orders", "order_item", "idempotency_key", "outbox"] {
        assert_eq!(app.count(table).await, 0, "{table}");
    }
    app.execute("alter table order_item drop constraint test_full").await;
    let placed = app.place("k", &order()).await;
    placed.placed();
    assert!(!placed.is_replay());
}

#[tokio::test]
async fn order_lines_key_and_event_are_of_one_transaction() {
    let app = TestApp::start().await;
    app.place("k", &order()).await.placed();
    let transactions: Vec<String> = sqlx::query_scalar(
        "select xmin::text from orders union select xmin::text from order_item
         union select xmin::text from idempotency_key union select xmin::text from messaging.outbox",
    )
    .fetch_all(&app.database.pool)
    .await
    .unwrap();
    assert_eq!(transactions.len(), 1, "{transactions:?}");
}

#[tokio::test]
async fn a_request_that_still_runs_makes_the_second_409() {
    let app = TestApp::start_with(&["--database-lock-timeout", "200ms"]).await;
    let mut running = app.database.pool.begin().await.unwrap();
    sqlx::query(
        "insert into idempotency_key (principal, method, route, key, fingerprint, status, body, created_at, expires_at)
         values ($1, 'POST', '/v1/orders', 'k', sha256('x'), 201, 'x', now(), now() + interval '1 day')",
    )
    .bind(app.customer)
    .execute(&mut *running)
    .await
    .unwrap();
    let refused = app.place("k", &order()).await;
    refused.problem(409, "idempotency-in-progress");
    assert_eq!(refused.header("retry-after"), Some("1"));
    running.rollback().await.unwrap();
    let placed = app.place("k", &order()).await;
    placed.placed();
    assert!(!placed.is_replay());
}

#[tokio::test]
async fn a_hundred_requests_at_once_make_one_order() {
    let app = TestApp::start_with(&["--database-pool-size", "16"]).await;
    let body = order();
    let answers = join_all((0..100).map(|_| app.place("k", &body))).await;
    let mut first = 0;
    let mut texts = HashSet::new();
    for answer in &answers {
        if answer.status == 409 {
            answer.problem(409, "idempotency-in-progress");
            continue;
        }
        answer.placed();
        first += usize::from(!answer.is_replay());
        texts.insert(answer.text.clone());
    }
    assert_eq!((first, texts.len()), (1, 1));
    assert_eq!((app.count("orders").await, app.count("outbox").await), (1, 1));
}

#[tokio::test]
async fn different_requests_at_once_under_one_key_make_one_order() {
    let app = TestApp::start().await;
    let bodies: Vec<_> =
        (1..=20).map(|n| order_with(json!({"items": [{"sku": "MUG-1", "quantity": n}]}))).collect();
    let answers = join_all(bodies.iter().map(|body| app.place("k", body))).await;
    let placed = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!((placed, app.count("orders").await), (1, 1));
    for refused in answers.iter().filter(|answer| answer.status != 201 && answer.status != 409) {
        refused.problem(422, "idempotency-key-reused");
    }
}

#[tokio::test]
async fn a_key_past_its_lifetime_is_new_even_before_it_is_deleted() {
    let app = TestApp::start().await;
    let first = app.place("k", &order()).await.placed();
    let lifetime: i64 =
        sqlx::query_scalar("select extract(day from expires_at - created_at)::bigint from idempotency_key")
            .fetch_one(&app.database.pool)
            .await
            .unwrap();
    assert_eq!(lifetime, 15);
    app.execute("update idempotency_key set expires_at = clock_timestamp()").await;
    let other = order_with(json!({"paymentMethod": "CARD"}));
    let answers = join_all((0..10).map(|_| app.place("k", &other))).await;
    let ids: HashSet<String> = answers.iter().map(|answer| answer.placed()["id"].to_string()).collect();
    assert_eq!(ids.len(), 1);
    assert!(!ids.contains(&first["id"].to_string()));
    assert_eq!((app.count("orders").await, app.count("idempotency_key").await), (2, 1));
    app.place("k", &order()).await.problem(422, "idempotency-key-reused");
}

#[tokio::test]
async fn a_request_that_the_client_abandons_has_its_effect_once_or_not_at_all() {
    let app = TestApp::start_with(&["--database-pool-size", "4"]).await;
    let body = order();
    let abandoned = (0..60_u64).map(async |n| {
        let request = app.post(&format!("k{n}"), &body).send();
        drop(tokio::time::timeout(Duration::from_micros(300 * n), request).await);
    });
    join_all(abandoned).await;
    for n in 0..60 {
        app.place(&format!("k{n}"), &body).await.placed();
    }
    assert_eq!((app.count("orders").await, app.count("outbox").await), (60, 60));
}

#[tokio::test]
async fn a_lost_database_connection_leaves_one_order_per_key() {
    let app = TestApp::start().await;
    app.place("warm", &order()).await.placed();
    app.database.terminate_sessions().await;
    let body = order();
    eventually(async || {
        let answer = app.place("k", &body).await;
        if answer.status == 201 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    eventually(async || {
        let count =
            sqlx::query_scalar::<_, i64>("select count(*) from orders").fetch_one(&app.database.pool).await;
        count.map(|count| assert_eq!(count, 2))
    })
    .await;
}
