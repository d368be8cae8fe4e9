//! A client of the order API.

use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use uuid::Uuid;

/// Places and reads orders as one customer.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: String,
    /// The customer.
    pub customer: Uuid,
}

/// What the API answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Whether it is the stored answer of an earlier request.
    pub replayed: bool,
    /// JSON body, `null` when there is none.
    pub body: Value,
}

impl Answer {
    /// The `id` of the body.
    ///
    /// # Errors
    /// The body has none.
    pub fn id(&self) -> anyhow::Result<Uuid> {
        let text = self.body["id"].as_str().with_context(|| format!("no id in {self:?}"))?;
        Ok(text.parse()?)
    }
}

impl Client {
    /// A client of the API at `base` that speaks as `customer` with its token.
    ///
    /// # Errors
    /// No HTTP client can be had.
    pub fn new(base: &str, customer: Uuid, token: String) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build()?;
        Ok(Self { http, base: base.trim_end_matches('/').to_owned(), token, customer })
    }

    /// Places an order of one item under an idempotency key; `traceparent` makes it part of the caller's trace.
    ///
    /// # Errors
    /// No answer.
    pub async fn place(
        &self,
        key: &str,
        sku: &str,
        quantity: u32,
        method: &str,
        traceparent: Option<&str>,
    ) -> anyhow::Result<Answer> {
        let body = json!({
            "items": [{ "sku": sku, "quantity": quantity }],
            "currency": "KRW",
            "paymentMethod": method,
        });
        let mut request =
            self.http.post(format!("{}/v1/orders", self.base)).header("Idempotency-Key", key).json(&body);
        if let Some(traceparent) = traceparent {
            request = request.header("traceparent", traceparent);
        }
        self.send(request).await
    }

    /// `GET` of a path below the base.
    ///
    /// # Errors
    /// No answer.
    pub async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.send(self.http.get(format!("{}{path}", self.base))).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Answer> {
        let response = request.bearer_auth(&self.token).send().await?;
        let status = response.status().as_u16();
        let replayed = response.headers().get("idempotent-replayed").is_some_and(|v| v == "true");
        let bytes = response.bytes().await?;
        let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes)? };
        Ok(Answer { status, replayed, body })
    }
}
