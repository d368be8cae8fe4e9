use chrono::{DateTime, TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::app::{TestApp, order, order_with, send};

fn time(value: &Value) -> DateTime<Utc> {
    let text = value.as_str().expect("a time");
    assert!(text.ends_with('Z'), "{text}");
    text.parse().expect("RFC 3339")
}

#[tokio::test]
async fn an_order_on_delivery_is_confirmed_at_once() {
    let app = TestApp::start().await;
    let order = app.place("k", &order()).await.placed();
    assert_eq!(
        order,
        json!({
            "id": order["id"], "customerId": app.customer, "status": "CONFIRMED", "version": 1,
            "currency": "KRW",
            "items": [
                {"sku": "TEA-100", "quantity": 2, "unitPrice": 4_500},
                {"sku": "MUG-1", "quantity": 1, "unitPrice": 12_000},
            ],
            "total": 21_000, "paymentMethod": "ON_DELIVERY", "pointsUsed": 0, "paid": 0, "refunded": 0,
            "reason": null, "expiresAt": null, "createdAt": order["createdAt"], "updatedAt": order["createdAt"],
        })
    );
    let id: Uuid = order["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(id.get_version_num(), 7);
    let (base, rate): (i64, i32) = sqlx::query_as("select earn_base, earn_rate_bp from orders")
        .fetch_one(&app.database.pool)
        .await
        .unwrap();
    assert_eq!((base, rate), (21_000, 100));
}

#[tokio::test]
async fn a_card_order_waits_half_an_hour_by_the_databases_clock() {
    let app = TestApp::start().await;
    let before: DateTime<Utc> =
        sqlx::query_scalar("select clock_timestamp()").fetch_one(&app.database.pool).await.unwrap();
    let order = app.place("k", &order_with(json!({"paymentMethod": "CARD"}))).await.placed();
    let after: DateTime<Utc> =
        sqlx::query_scalar("select clock_timestamp()").fetch_one(&app.database.pool).await.unwrap();
    assert_eq!(order["status"], "PENDING_PAYMENT");
    let created = time(&order["createdAt"]);
    assert!(before <= created && created <= after);
    assert_eq!(time(&order["expiresAt"]) - created, TimeDelta::minutes(30));
    let earn_base: i64 =
        sqlx::query_scalar("select earn_base from orders").fetch_one(&app.database.pool).await.unwrap();
    assert_eq!(earn_base, 0);
}

#[tokio::test]
async fn an_order_reads_as_it_was_answered() {
    let app = TestApp::start().await;
    let placed = app.place("k", &order()).await;
    let read = app.get(placed.header("location").unwrap()).await;
    assert_eq!(read.status, 200);
    assert_eq!(read.json(), placed.placed());
    assert_eq!(read.header("etag"), Some("\"1\""));
    assert_eq!(read.header("cache-control"), Some("no-store"));
    for (tags, status) in [("\"1\"", 304), ("\"0\", W/\"1\"", 304), ("*", 304), ("\"2\"", 200), ("1", 200)] {
        let path = placed.header("location").unwrap();
        let answer = send(app.request(Method::GET, path).header("If-None-Match", tags)).await;
        assert_eq!((answer.status.as_u16(), answer.header("etag")), (status, Some("\"1\"")), "{tags}");
        assert_eq!(answer.text.is_empty(), status == 304);
    }
    app.execute("update orders set version = 7, status = 'CANCELLED', reason = 'changed my mind'").await;
    let read = app.get(placed.header("location").unwrap()).await;
    assert_eq!(read.header("etag"), Some("\"7\""));
    assert_eq!(
        (&read.json()["status"], &read.json()["reason"]),
        (&json!("CANCELLED"), &json!("changed my mind"))
    );
}

#[tokio::test]
async fn only_the_customer_and_the_staff_see_an_order() {
    let app = TestApp::start().await;
    let placed = app.place("k", &order()).await;
    let path = placed.header("location").unwrap();
    let read = async |scope| send(app.request_as(Uuid::new_v4(), scope, Method::GET, path)).await;
    read("customer").await.problem(404, "order-not-found");
    assert_eq!(read("operator").await.json(), placed.json());
    assert_eq!(read("service").await.json(), placed.json());
}

#[tokio::test]
async fn what_is_no_order_is_not_found() {
    let app = TestApp::start().await;
    for id in [Uuid::now_v7().to_string(), "1".into(), "x".repeat(500), "%00".into(), "%ff".into()] {
        app.get(&format!("/v1/orders/{id}")).await.problem(404, "order-not-found");
    }
}

#[tokio::test]
async fn only_customers_place_orders() {
    let app = TestApp::start().await;
    for scope in ["operator", "service"] {
        let request = app.request_as(Uuid::new_v4(), scope, Method::POST, "/v1/orders");
        send(request.header("Idempotency-Key", "k").json(&order())).await.problem(403, "forbidden");
    }
    assert_eq!(app.count("orders").await, 0);
}

#[tokio::test]
async fn the_expected_amount_must_be_the_total() {
    let app = TestApp::start().await;
    let placed = app.place("right", &order_with(json!({"expectedAmount": 21_000}))).await.placed();
    assert_eq!(placed["total"], 21_000);
    let refused = app.place("wrong", &order_with(json!({"expectedAmount": 20_999}))).await;
    let problem = refused.problem(422, "amount-mismatch");
    assert_eq!(problem["errors"][0]["pointer"], "/expectedAmount");
    assert!(problem["detail"].as_str().unwrap().contains("21000"), "{problem}");
    assert_eq!(app.count("orders").await, 1);
}

#[tokio::test]
async fn what_cannot_be_ordered_is_named() {
    let app = TestApp::start().await;
    app.execute(
        "insert into currency values ('USD', 2, 1300);
         insert into product (sku, name, unit_price, currency, active) values
            ('OLD', 'old', 1, 'KRW', false), ('USD-1', 'dollar', 1, 'USD', true)",
    )
    .await;
    let items = ["TEA-100", "NONE", "OLD", "USD-1"].map(|sku| json!({"sku": sku, "quantity": 1}));
    let problem =
        app.place("k", &order_with(json!({"items": items}))).await.problem(400, "validation-failed");
    let pointers: Vec<&str> =
        problem["errors"].as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap()).collect();
    assert_eq!(pointers, ["/items/1/sku", "/items/2/sku", "/currency"]);
    assert_eq!(app.count("idempotency_key").await, 0);
}

/// What is not declared is refused where a product is made; what is sold, and what it earns, is as it was declared.
#[tokio::test]
async fn only_declared_currencies_are_sold_and_each_earns_by_its_own_rate() {
    let app = TestApp::start().await;
    for currency in ["KWD", "XXX"] {
        let insert = "insert into product (sku, name, unit_price, currency) values ('P', 'p', 1234, $1)";
        let refused =
            sqlx::query(insert).bind(currency).execute(&app.database.pool).await.expect_err(currency);
        let refused = refused.as_database_error().and_then(|e| e.constraint()).map(str::to_owned);
        assert_eq!(refused.as_deref(), Some("product_currency_fkey"), "{currency}");
    }
    app.execute(
        "insert into currency (code, minor_units, earn_rate_bp) values ('KWD', 3, 430), ('USD', 2, 0);
         insert into product (sku, name, unit_price, currency) values ('DINAR', 'd', 1234, 'KWD'), ('CENT', 'c', 1234, 'USD')",
    )
    .await;
    let order = |sku: &str, currency: &str| {
        order_with(json!({"items": [{"sku": sku, "quantity": 1}], "currency": currency}))
    };
    for (sku, currency, rate) in [("DINAR", "KWD", 430), ("CENT", "USD", 0), ("TEA-100", "KRW", 100)] {
        let placed = app.place(sku, &order(sku, currency)).await.placed();
        assert_eq!(placed["currency"], currency);
        let earns: i32 = sqlx::query_scalar("select earn_rate_bp from orders where id = $1::text::uuid")
            .bind(placed["id"].as_str())
            .fetch_one(&app.database.pool)
            .await
            .expect("order");
        assert_eq!(earns, rate, "{currency}");
        let wrong = if currency == "USD" { "KWD" } else { "USD" };
        let problem = app.place(wrong, &order(sku, wrong)).await.problem(400, "validation-failed");
        let errors = problem["errors"].as_array().expect("errors");
        assert_eq!(errors.len(), 1, "{problem}");
        assert_eq!(errors[0]["pointer"], "/currency");
        assert!(errors[0]["detail"].as_str().expect("text").contains(currency), "{problem}");
    }
    let products = app.get("/v1/products").await.json();
    let dinar = products["items"].as_array().expect("items").iter().find(|p| p["sku"] == "DINAR");
    assert_eq!(dinar.expect("listed")["minorUnits"], 3);
}

/// Products from before currencies were declared stay, and are neither listed nor sold.
#[tokio::test]
async fn a_product_in_a_currency_that_was_never_declared_is_not_sold() {
    let app = TestApp::start().await;
    app.execute(
        "alter table product drop constraint product_currency_fkey;
         insert into product (sku, name, unit_price, currency) values ('ODD', 'o', 1, 'XXX');
         alter table product add constraint product_currency_fkey
            foreign key (currency) references currency (code) not valid",
    )
    .await;
    let order = order_with(json!({"items": [{"sku": "ODD", "quantity": 1}], "currency": "XXX"}));
    let problem = app.place("k", &order).await.problem(400, "validation-failed");
    assert_eq!(problem["errors"][0]["pointer"], "/currency");
    let products = app.get("/v1/products").await.json();
    assert!(!products.to_string().contains("ODD"), "{products}");
}

#[tokio::test]
async fn a_total_that_json_cannot_hold_is_refused() {
    let app = TestApp::start().await;
    app.execute(
        "insert into product select 'GOLD' || n, 'g', 1000000000000, 'KRW' from generate_series(1, 9) n",
    )
    .await;
    let items: Vec<Value> = (1..=9).map(|n| json!({"sku": format!("GOLD{n}"), "quantity": 1000})).collect();
    app.place("nine", &order_with(json!({"items": items}))).await.placed();
    let mut items = items;
    items.push(json!({"sku": "GOLD", "quantity": 1000}));
    app.place("ten", &order_with(json!({"items": items}))).await.problem(422, "total-too-large");
}
