//! The order API over HTTP: the real binary reads the noise.

use anyhow::ensure;
use uuid::Uuid;

use crate::System;

/// A running order service.
#[derive(Debug)]
pub struct Api {
    system: System,
    http: reqwest::Client,
    token: String,
    pid: u32,
}

impl Api {
    /// Starts the service with a database of its own.
    ///
    /// # Errors
    /// No HTTP client can be had.
    pub async fn start() -> anyhow::Result<Self> {
        let mut system = System::prepare(&[("RUST_LOG", "warn"), ("RATE_LIMIT", "0")]).await;
        system.spawn("order", None);
        system.ready("order").await;
        let token = system.issuer.token(Uuid::now_v7(), "customer");
        let pid = system.process("order").id().unwrap_or_default();
        Ok(Self { http: reqwest::Client::builder().no_proxy().build()?, token, pid, system })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) async fn body(&self, noise: Vec<u8>) -> anyhow::Result<bool> {
        let request = self.http.post(format!("{}/v1/orders", self.system.http("order")));
        let request = request.header("idempotency-key", Uuid::new_v4().to_string());
        self.judge(request.header("content-type", "application/json").body(noise)).await
    }

    /// The noise is one query string; what cannot stand in a URL is escaped.
    pub(super) async fn query(&self, noise: &[u8]) -> anyhow::Result<bool> {
        let mut url: reqwest::Url = format!("{}/v1/orders", self.system.http("order")).parse()?;
        url.set_query(Some(&String::from_utf8_lossy(&noise[..noise.len().min(4_000)])));
        self.judge(self.http.get(url)).await
    }

    async fn judge(&self, request: reqwest::RequestBuilder) -> anyhow::Result<bool> {
        let answer = request.bearer_auth(&self.token).send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        ensure!(!status.is_server_error(), "{status}: {text}");
        // A head over 16 KiB is refused by the connection itself, before there is a route to answer for it.
        let coded =
            text.contains("\"code\"") || status == reqwest::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        ensure!(status.is_success() || coded, "{status} without a code: {text}");
        Ok(status.is_success())
    }
}

pub(super) fn bodies() -> Vec<Vec<u8>> {
    [
        r#"{"items":[{"sku":"TEA-1","quantity":2}],"currency":"KRW","paymentMethod":"ON_DELIVERY"}"#,
        r#"{"items":[{"sku":"CUP-1","quantity":1},{"sku":"POT-1","quantity":1000}],"currency":"KRW","paymentMethod":"CARD","expectedAmount":39012000}"#,
        r#"[[["TEA-1",2]],"KRW","CARD"]"#,
        r#"{"items":null,"currency":5,"paymentMethod":{"a":[[[[]]]]}}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

pub(super) fn queries() -> Vec<Vec<u8>> {
    use base64::Engine as _;
    let cursor = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode([7_u8; 32]);
    [
        format!("limit=20&cursor={cursor}"),
        "status=CONFIRMED&createdFrom=2026-01-01T00:00:00Z&createdTo=2026-12-31T23:59:59.999999Z&limit=100"
            .to_owned(),
        "createdFrom=9999-12-31T23:59:60Z&cursor=AAAA&cursor=".to_owned(),
        String::new(),
    ]
    .map(String::into_bytes)
    .into()
}
