//! The service on port 0 with a database of its own.

use std::sync::Once;

use clap::Parser;
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_order::{App, Config, NAME, migrators, problems};
use waybill_service::telemetry;
use waybill_testkit::Database;
use waybill_testkit::jwt::Issuer;

/// Products of every test database: sku and price.
pub(crate) const PRODUCTS: [(&str, i64); 3] =
    [("TEA-100", 4_500), ("MUG-1", 12_000), ("GOLD", 1_000_000_000_000)];
/// Prefix of the tests' topics.
pub(crate) const PREFIX: &str = "test.";

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    config: Config,
}

pub(crate) struct TestApp {
    pub(crate) base: String,
    pub(crate) metrics: String,
    pub(crate) database: Database,
    pub(crate) issuer: Issuer,
    pub(crate) customer: Uuid,
    pub(crate) client: reqwest::Client,
    pub(crate) shutdown: CancellationToken,
    pub(crate) running: Option<JoinHandle<anyhow::Result<()>>>,
}

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

pub(crate) fn config(database_url: &str, issuer: &Issuer, more: &[&str]) -> Config {
    let jwks = issuer.jwks_file().display().to_string();
    let mut args =
        vec!["order", "--database-url", database_url, "--jwt-jwks-file", &jwks, "--topic-prefix", PREFIX];
    args.extend(["--http-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]);
    args.extend(more);
    Cli::try_parse_from(args).expect("settings").config
}

/// Traces without an exporter, so that events carry a real trace id.
fn telemetry() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let issuer = Issuer::new();
        let config = config("postgres://unused", &issuer, &["--rust-log", "error"]);
        std::mem::forget(telemetry::init(NAME, &config.telemetry).expect("telemetry"));
    });
}

impl TestApp {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub(crate) async fn start_with(settings: &[&str]) -> Self {
        let database = Database::create(&migrators()).await;
        let url = database.url.clone();
        Self::start_on(database, &url, settings).await
    }

    pub(crate) async fn start_on(database: Database, url: &str, settings: &[&str]) -> Self {
        telemetry();
        let issuer = Issuer::new();
        for (sku, price) in PRODUCTS {
            sqlx::query("insert into product (sku, name, unit_price, currency) values ($1, $1, $2, 'KRW')")
                .bind(sku)
                .bind(price)
                .execute(&database.pool)
                .await
                .expect("product");
        }
        let app = App::build(config(url, &issuer, settings)).await.expect("builds");
        let shutdown = CancellationToken::new();
        Self {
            base: format!("http://{}", app.local_addr()),
            metrics: format!("http://{}/metrics", app.metrics_addr()),
            database,
            issuer,
            customer: Uuid::new_v4(),
            client: reqwest::Client::builder().no_proxy().build().expect("client"),
            running: Some(tokio::spawn(app.run(shutdown.clone()))),
            shutdown,
        }
    }

    /// A request with the customer's token.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.request_as(self.customer, "customer", method, path)
    }

    pub(crate) fn request_as(&self, who: Uuid, scope: &str, method: Method, path: &str) -> RequestBuilder {
        let token = self.issuer.token(who, scope);
        self.client.request(method, format!("{}{path}", self.base)).bearer_auth(token)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    pub(crate) fn post(&self, key: &str, body: &Value) -> RequestBuilder {
        self.request(Method::POST, "/v1/orders").header("Idempotency-Key", key).json(body)
    }

    pub(crate) async fn place(&self, key: &str, body: &Value) -> Answer {
        send(self.post(key, body)).await
    }

    /// Rows of a table.
    pub(crate) async fn count(&self, table: &'static str) -> i64 {
        let statement = match table {
            "orders" => "select count(*) from orders",
            "order_item" => "select count(*) from order_item",
            "idempotency_key" => "select count(*) from idempotency_key",
            "outbox" => "select count(*) from messaging.outbox",
            other => panic!("no table {other}"),
        };
        sqlx::query_scalar(statement).fetch_one(&self.database.pool).await.expect("count")
    }

    pub(crate) async fn execute(&self, statement: &'static str) {
        sqlx::raw_sql(statement).execute(&self.database.pool).await.expect(statement);
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

pub(crate) async fn send(request: RequestBuilder) -> Answer {
    let response = request.send().await.expect("an answer");
    let (status, headers) = (response.status(), response.headers().clone());
    Answer { status, headers, text: response.text().await.expect("a whole answer") }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }

    /// Asserts a problem with this status and code, whose page exists; gives its JSON.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem = self.json();
        assert_eq!((&problem["status"], &problem["code"]), (&json!(status), &json!(code)), "{problem}");
        assert!(problem["requestId"].is_string() && problem["detail"].is_string(), "{problem}");
        assert_eq!(problem["type"], format!("/problems/{code}"));
        assert!(
            problems::PAGES.iter().any(|page| page.slug == code && page.status == status),
            "no page: {code}"
        );
        assert_eq!(matches!(status, 409 | 429 | 503), self.header("retry-after").is_some(), "{problem}");
        problem
    }

    /// Asserts a placed order; gives its JSON.
    #[track_caller]
    pub(crate) fn placed(&self) -> Value {
        assert_eq!(self.status.as_u16(), 201, "{}", self.text);
        let order = self.json();
        let location = format!("/v1/orders/{}", order["id"].as_str().expect("id"));
        assert_eq!(self.header("location"), Some(location.as_str()));
        assert_eq!(self.header("etag"), Some("\"1\""));
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert_eq!(self.header("cache-control"), Some("no-store"));
        order
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }
}

/// Two teas and a mug, paid on delivery: 21,000 KRW.
pub(crate) fn order() -> Value {
    json!({
        "items": [{"sku": "TEA-100", "quantity": 2}, {"sku": "MUG-1", "quantity": 1}],
        "currency": "KRW",
        "paymentMethod": "ON_DELIVERY",
    })
}

/// The order with some members replaced or added.
pub(crate) fn order_with(members: Value) -> Value {
    let mut body = order();
    for (name, value) in members.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}
