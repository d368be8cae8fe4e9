use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::postgres::PgListener;
use waybill_event::{OrderEvent, decode};
use waybill_testkit::PATIENCE;

use crate::app::{TestApp, order, order_with, send};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

#[tokio::test]
async fn the_event_is_the_answer_in_full() {
    let app = TestApp::start().await;
    for (key, method) in [("a", "ON_DELIVERY"), ("b", "CARD")] {
        let body = order_with(json!({"paymentMethod": method}));
        let traced = app.post(key, &body).header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"));
        let order = send(traced.header("tracestate", "vendor=1")).await.placed();
        let row = sqlx::query(
            "select id, bucket, messaging.bucket(aggregateid) as expected, aggregatetype, type, topic, payload,
                traceparent, tracestate, sent_at is null as unsent
             from messaging.outbox where aggregateid = $1",
        )
        .bind(order["id"].as_str())
        .fetch_one(&app.database.pool)
        .await
        .unwrap();
        let text = |name: &str| row.get::<String, _>(name);
        assert_eq!(row.get::<uuid::Uuid, _>("id").get_version_num(), 7);
        assert_eq!(row.get::<i16, _>("bucket"), row.get::<i16, _>("expected"));
        assert_eq!(
            (text("aggregatetype"), text("type"), text("topic")),
            ("order".into(), "waybill.order.placed".into(), "test.orders.v1".into())
        );
        let trace = text("traceparent");
        assert!(trace.starts_with(&format!("00-{TRACE}-")) && !trace.contains("00f067aa0ba902b7"), "{trace}");
        assert_eq!(text("tracestate"), "vendor=1");
        assert!(row.get::<bool, _>("unsent"));
        let event: OrderEvent = decode(row.get("payload")).unwrap();
        same(&event, &order);
    }
}

fn same(event: &OrderEvent, order: &Value) {
    assert_eq!(event.order_id.to_string(), order["id"]);
    assert_eq!(event.customer_id.to_string(), order["customerId"]);
    assert_eq!((event.version, event.r#type.as_str()), (1, "placed"));
    assert_eq!((&json!(event.status), &json!(event.currency)), (&order["status"], &order["currency"]));
    assert_eq!(json!(event.payment_method), order["paymentMethod"]);
    let items: Vec<Value> = event
        .items
        .iter()
        .map(|i| json!({"sku": i.sku, "quantity": i.quantity, "unitPrice": i.unit_price}))
        .collect();
    assert_eq!(json!(items), order["items"]);
    assert_eq!(
        json!([event.total, event.points_used, event.paid, event.refunded]),
        json!([order["total"], 0, 0, 0])
    );
    let confirmed = event.status == "CONFIRMED";
    let earns = if confirmed { (event.total, 100) } else { (0, 0) };
    assert_eq!((event.earn_base, event.earn_rate_bp), earns);
    let time = |at: chrono::DateTime<chrono::Utc>| json!(waybill_event::time::ce_time(at));
    assert_eq!(time(event.occurred_at), order["createdAt"]);
    assert_eq!(event.expires_at.map_or(Value::Null, time), order["expiresAt"]);
    assert_eq!((event.attempt.is_none(), event.reason.is_none()), (true, true));
}

#[tokio::test]
async fn an_order_that_the_database_refuses_draws_no_seq() {
    let app = TestApp::start().await;
    app.execute("alter table orders add constraint test_full check (total < 0) not valid").await;
    app.place("k", &order()).await.problem(500, "internal-error");
    // Were the event appended first, its seq would be gone although the statement was rolled back.
    let drawn: bool = sqlx::query_scalar("select is_called from messaging.outbox_seq_seq")
        .fetch_one(&app.database.pool)
        .await
        .unwrap();
    assert!(!drawn);
    // A replay and a conflict draw none either.
    app.execute("alter table orders drop constraint test_full").await;
    app.place("k", &order()).await.placed();
    app.place("k", &order()).await.placed();
    app.place("k", &order_with(json!({"paymentMethod": "CARD"})))
        .await
        .problem(422, "idempotency-key-reused");
    let last: i64 = sqlx::query_scalar("select last_value from messaging.outbox_seq_seq")
        .fetch_one(&app.database.pool)
        .await
        .unwrap();
    assert_eq!(last, 1);
}

#[tokio::test]
async fn an_event_that_does_not_fit_its_topic_is_an_error_before_the_commit() {
    let app = TestApp::start_with(&["--outbox-max-bytes", "1100"]).await;
    app.place("k", &order()).await.problem(500, "internal-error");
    assert_eq!((app.count("orders").await, app.count("idempotency_key").await), (0, 0));
}

#[tokio::test]
async fn the_relays_bell_rings_after_the_commit() {
    let app = TestApp::start().await;
    let mut listener = PgListener::connect_with(&app.database.pool).await.unwrap();
    listener.listen(waybill_outbox::CHANNEL).await.unwrap();
    app.place("k", &order()).await.placed();
    tokio::time::timeout(PATIENCE, listener.recv()).await.expect("rings").unwrap();
}

#[tokio::test]
async fn a_damaged_trace_starts_a_new_one() {
    let app = TestApp::start().await;
    let request = app.request(Method::POST, "/v1/orders").header("Idempotency-Key", "k").json(&order());
    send(request.header("traceparent", "00-zz-1-01").header("tracestate", "vendor=1")).await.placed();
    let (parent, state): (String, Option<String>) =
        sqlx::query_as("select traceparent, tracestate from messaging.outbox")
            .fetch_one(&app.database.pool)
            .await
            .unwrap();
    assert_eq!(parent.len(), 55);
    assert_eq!(state, None);
}
