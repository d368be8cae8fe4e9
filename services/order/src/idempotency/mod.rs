//! Idempotency keys: a request repeated under the same key has its effect once and gets the same answer.
//!
//! Promises: the answer is written in the transaction of the effect, so a crash leaves both or neither; a key is
//! compared by principal, method, route template and text; an answer is only repeated to the same typed request;
//! a key older than its lifetime counts as new. Refusals (4xx, 5xx) store nothing.
//! Does not promise: anything about a request that was sent under two keys.

mod answer;
mod key;
pub mod purge;
mod store;

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode};
use waybill_service::http::ApiError;

pub use answer::{Answer, Fingerprint, Outcome, Stored};
pub use key::Key;
pub(crate) use store::{Entry, Scope, find, still_running};

/// Request header that carries the key.
pub const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// Response header of a repeated answer.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const TRUE: HeaderValue = HeaderValue::from_static("true");

/// Why a key does not lead to an answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No header.
    #[error(
        "the header Idempotency-Key is missing; send a new UUID for each new order, the same for a repetition"
    )]
    Missing,
    /// Not a key.
    #[error("the header Idempotency-Key cannot be used: {0}")]
    Invalid(&'static str),
    /// The key was used for a different request.
    #[error("the key was used for another request before; a new request needs a new key")]
    Reused,
    /// A request with this key has not ended yet.
    #[error("a request with this key is still running; repeat it a little later")]
    InProgress,
    /// The request or its answer has no JSON form.
    #[error("cannot be written as JSON")]
    Encode(#[source] serde_json::Error),
    /// The database refused.
    #[error("the database refused")]
    Database(#[from] sqlx::Error),
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let detail = error.to_string();
        match error {
            Error::Missing => Self::new(StatusCode::BAD_REQUEST, "idempotency-key-missing", detail),
            Error::Invalid(_) => Self::new(StatusCode::BAD_REQUEST, "idempotency-key-invalid", detail),
            Error::Reused => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused", detail),
            Error::InProgress => Self::new(StatusCode::CONFLICT, "idempotency-in-progress", detail)
                .retry_after(Duration::from_secs(1)),
            Error::Encode(source) => Self::internal(source),
            Error::Database(source) => source.into(),
        }
    }
}
