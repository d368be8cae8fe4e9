//! The HTTP API as the command line calls it.

use std::fmt::Write as _;

use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde_json::Value;

use super::args::Common;

/// Why a verb does not do what it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The console says no.
    #[error("{0}")]
    Refused(String),
    /// Asked wrongly.
    #[error("{0}")]
    Usage(String),
    /// The console, or what it needs, does not answer.
    #[error("{0}")]
    Unreachable(String),
}

/// The console.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    token: String,
    /// Answers are printed as JSON.
    pub(super) json: bool,
}

impl Client {
    pub(super) fn new(common: &Common) -> Result<Self, Failure> {
        let token = match (&common.token, &common.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => std::fs::read_to_string(file)
                .map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?,
            (None, None) => {
                let text = "no token: give --token, --token-file, WAYBILL_TOKEN or WAYBILL_TOKEN_FILE";
                return Err(Failure::Usage(text.to_owned()));
            }
        };
        let http = reqwest::Client::builder().no_proxy().build();
        let http = http.map_err(|error| Failure::Unreachable(error.to_string()))?;
        let (base, json) = (common.url.clone(), common.json);
        Ok(Self { http, base, token: token.trim().to_owned(), json })
    }

    pub(super) async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
        self.value(self.request(Method::GET, path).query(query)).await
    }

    /// With a filter in the query.
    pub(super) async fn filtered(
        &self,
        path: &str,
        filter: &impl Serialize,
        query: &[(&str, String)],
    ) -> Result<Value, Failure> {
        self.value(self.request(Method::GET, path).query(filter).query(query)).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.value(self.request(Method::POST, path).json(body)).await
    }

    /// A post without body.
    pub(super) async fn act(&self, path: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
        self.value(self.request(Method::POST, path).query(query)).await
    }

    /// An answer that is read while it comes.
    pub(super) async fn stream(
        &self,
        path: &str,
        filter: &impl Serialize,
        query: &[(&str, String)],
    ) -> Result<Response, Failure> {
        self.answer(self.request(Method::GET, path).query(filter).query(query)).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let mut url = self.base.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}{path}"));
        self.http.request(method, url).bearer_auth(&self.token)
    }

    async fn value(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let answer = self.answer(request).await?;
        answer.json().await.map_err(|error| self.unreachable(&error))
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let problem: Value = answer.json().await.unwrap_or_default();
        let mut text = problem["detail"].as_str().unwrap_or("no reason given").to_owned();
        for error in problem["errors"].as_array().into_iter().flatten() {
            let part = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
            let _ = write!(text, "; {} {}", part("pointer"), part("detail"));
        }
        let text = format!("{text} ({status}, {})", problem["code"].as_str().unwrap_or("no code"));
        Err(match status {
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY => {
                Failure::Usage(text)
            }
            status if status.is_server_error() => Failure::Unreachable(text),
            _ => Failure::Refused(text),
        })
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let mut text = format!("{} cannot be reached: {error}", self.base);
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            let _ = write!(text, ": {error}");
            cause = error.source();
        }
        Failure::Unreachable(text)
    }
}
