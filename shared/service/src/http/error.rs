//! Errors as RFC 9457 problem details.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

type Source = Arc<dyn std::error::Error + Send + Sync>;

/// An answer that is not a success: a stable `code`, a sentence for people, and perhaps the fields at fault.
///
/// A 5xx never shows its cause to the client; the frame logs it once.
#[derive(Debug, Clone)]
pub struct ApiError(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    status: StatusCode,
    code: &'static str,
    detail: String,
    errors: Vec<FieldError>,
    headers: HeaderMap,
    source: Option<Source>,
}

/// One field at fault.
#[derive(Debug, Clone, Serialize)]
struct FieldError {
    pointer: String,
    detail: String,
}

#[derive(Serialize)]
struct Problem<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    code: &'a str,
    detail: &'a str,
    #[serde(rename = "requestId", skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [FieldError],
}

impl ApiError {
    /// A problem with a stable code, which is also the slug of its page, and a sentence that says what to do.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self(Box::new(Inner {
            status,
            code,
            detail,
            errors: Vec::new(),
            headers: HeaderMap::new(),
            source: None,
        }))
    }

    /// Names a field of the request by its JSON pointer (RFC 6901) and what is wrong with it.
    pub fn pointer(mut self, pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        self.0.errors.push(FieldError { pointer: pointer.into(), detail: detail.into() });
        self
    }

    /// When a repetition is worth it.
    pub fn retry_after(self, after: Duration) -> Self {
        self.header(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)))
    }

    /// Adds a header to the answer.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.insert(name, value);
        self
    }

    /// Keeps the cause for the log.
    pub fn source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// 500 `internal-error`; the cause goes to the log only.
    pub fn internal(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        let detail = "something failed on our side; the request id finds it in our logs";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal-error", detail).source(source)
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    /// The sentence for people.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The causes, outermost first, for the log.
    pub(crate) fn causes(&self) -> Option<String> {
        let mut cause: Option<&dyn std::error::Error> = self.0.source.as_deref().map(|s| s as _);
        let mut text = Vec::new();
        while let Some(error) = cause {
            text.push(error.to_string());
            cause = error.source();
        }
        (!text.is_empty()).then(|| text.join(": "))
    }

    pub(crate) fn body(&self, request_id: Option<&str>) -> Vec<u8> {
        let problem = Problem {
            r#type: format!("/problems/{}", self.0.code),
            title: self.0.status.canonical_reason().unwrap_or("Error"),
            status: self.0.status.as_u16(),
            code: self.0.code,
            detail: &self.0.detail,
            request_id,
            errors: &self.0.errors,
        };
        // Strings and numbers only: this cannot fail, and an empty body would still carry the status.
        serde_json::to_vec(&problem).unwrap_or_default()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.0.status, self.body(None)).into_response();
        response.headers_mut().extend(self.0.headers.clone());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        // The frame finds it here: it adds the request id and logs the cause.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
        let after = Duration::from_secs(1);
        match &error {
            // 57014: the statement time-out.
            sqlx::Error::Database(e) if e.code().as_deref() == Some("57014") => {
                Self::new(UNAVAILABLE, "overloaded", "the database took too long; nothing was done")
                    .retry_after(after)
                    .source(error)
            }
            // 55P03: the lock time-out.
            sqlx::Error::Database(e) if e.code().as_deref() == Some("55P03") => {
                Self::new(UNAVAILABLE, "overloaded", "another transaction is at it; nothing was done")
                    .retry_after(after)
                    .source(error)
            }
            sqlx::Error::PoolTimedOut => {
                Self::new(UNAVAILABLE, "overloaded", "too many requests at once; nothing was done")
                    .retry_after(after)
                    .source(error)
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => unavailable(error),
            // Class 57P: shut down, crashed or starting up; 53300: no connection left; 08: connection lost.
            sqlx::Error::Database(e)
                if e.code().is_some_and(|c| c.starts_with("57P") || c.starts_with("08") || c == "53300") =>
            {
                unavailable(error)
            }
            _ => Self::internal(error),
        }
    }
}

fn unavailable(error: sqlx::Error) -> ApiError {
    let detail = "the database does not answer; the same request may be sent again";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "database-unavailable", detail)
        .retry_after(Duration::from_secs(1))
        .source(error)
}
