//! What the real binary writes, also when things go wrong, has nothing of a request's content in it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;
use waybill_order::migrators;
use waybill_testkit::jwt::Issuer;
use waybill_testkit::process::{Process, free_address};
use waybill_testkit::{Database, eventually};

const SKU: &str = "SECRET-SKU-7731";
const KEY: &str = "secret-key-4410";
const AMOUNT: i64 = 987_654_321;
const STRANGE: &str = "strangely-named-field";

#[tokio::test]
async fn the_log_has_no_payload_no_token_and_no_customer() {
    let database = Database::create(&migrators()).await;
    sqlx::query(
        "insert into product (sku, name, unit_price, currency) values ($1, 'hidden name', $2, 'KRW')",
    )
    .bind(SKU)
    .bind(AMOUNT)
    .execute(&database.pool)
    .await
    .expect("product");
    let (issuer, customer, folder) = (Issuer::new(), Uuid::new_v4(), tempfile::tempdir().expect("folder"));
    let (http, metrics) = (free_address(), free_address());
    // Everything that can be made to speak, speaks.
    let settings = [
        ("DATABASE_URL", database.url.clone()),
        ("JWT_JWKS_FILE", issuer.jwks_file().display().to_string()),
        ("HTTP_LISTEN", http.to_string()),
        ("METRICS_LISTEN", metrics.to_string()),
        ("LOG_FORMAT", "json".to_owned()),
        ("RUST_LOG", "debug".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value));
    let log = folder.path().join("log");
    let process = Process::start("waybill-order", &["serve"], &settings, &log);
    let client = reqwest::Client::builder().no_proxy().build().expect("client");
    let base = format!("http://{http}");
    eventually(async || client.get(format!("{base}/readyz")).send().await?.error_for_status()).await;

    let token = issuer.token(customer, "customer");
    let send = async |token: &str, body: String| {
        let request = client.post(format!("{base}/v1/orders")).bearer_auth(token).body(body);
        let request = request.header("Idempotency-Key", KEY).header("content-type", "application/json");
        request.timeout(Duration::from_secs(20)).send().await.expect("answers").status().as_u16()
    };
    let order = |members: Value| {
        let mut order = json!({"items": [{"sku": SKU, "quantity": 7}], "currency": "KRW", "paymentMethod": "ON_DELIVERY"});
        order.as_object_mut().expect("object").extend(members.as_object().expect("object").clone());
        order.to_string()
    };
    assert_eq!(send(&token, order(json!({STRANGE: 1}))).await, 400);
    assert_eq!(send(&token, format!("{{\"{STRANGE}")).await, 400);
    assert_eq!(send(&token, order(json!({"expectedAmount": AMOUNT}))).await, 422);
    assert_eq!(send(&issuer.token_for(customer, "customer", -3600), order(json!({}))).await, 401);
    sqlx::raw_sql("alter table order_item add constraint test_full check (quantity < 0) not valid")
        .execute(&database.pool)
        .await
        .expect("constraint");
    assert_eq!(send(&token, order(json!({}))).await, 500);
    sqlx::raw_sql("alter table order_item drop constraint test_full")
        .execute(&database.pool)
        .await
        .expect("constraint");
    assert_eq!(send(&token, order(json!({}))).await, 201);
    assert_eq!(send(&token, order(json!({"paymentMethod": "CARD"}))).await, 422);
    let list = client.get(format!("{base}/v1/orders?cursor={STRANGE}")).bearer_auth(&token);
    assert_eq!(list.send().await.expect("answers").status(), 400);

    // What hyper cannot read is logged and counted too.
    let mut socket = TcpStream::connect(http).await.expect("connects");
    socket.write_all(format!("GET / HTTP/1.1\r\n{STRANGE}\r\n\r\n").as_bytes()).await.expect("sends");
    let mut refused = String::new();
    socket.read_to_string(&mut refused).await.expect("is closed");
    let id = refused.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("a request id");
    eventually(async || {
        let log = process.log();
        let line = log.lines().find(|line| line.contains(id) && line.contains("invalid-request"));
        line.map(drop).ok_or(log.clone())
    })
    .await;
    let counted = client.get(format!("http://{metrics}/metrics")).send().await.expect("answers").text().await;
    let counted = counted.expect("text");
    let line = counted.lines().find(|line| {
        line.starts_with("http_server_request_duration_seconds_count") && line.contains("_OTHER")
    });
    assert!(line.is_some_and(|line| line.contains("\"400\"") && line.ends_with(" 1")), "{counted}");

    eventually(async || {
        let seen = ["order placed", "request failed", "request refused"];
        if seen.iter().all(|line| process.log().contains(line)) { Ok(()) } else { Err(process.log()) }
    })
    .await;
    let text = process.log();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
    }
    let signature = token.rsplit('.').next().expect("signature");
    let (id, amount) = (customer.to_string(), AMOUNT.to_string());
    for secret in [SKU, KEY, STRANGE, &amount, "hidden name", &id, &token, signature, &database.url] {
        let found: Vec<_> = text.lines().filter(|line| line.contains(secret)).collect();
        assert!(found.is_empty(), "{secret} is in the log: {found:#?}");
    }
}
