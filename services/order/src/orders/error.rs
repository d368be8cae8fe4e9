//! Why an order is not placed, found or listed.

use axum::http::StatusCode;
use waybill_service::http::ApiError;

use crate::idempotency;

/// A field of the request and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// JSON pointer of the field; of a query, `/` and the parameter's name.
    pub pointer: String,
    /// What is wrong, for people.
    pub detail: String,
}

impl Violation {
    pub(crate) fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }
}

/// Failures of the orders feature.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request breaks rules that need no amounts.
    #[error("the request is not valid")]
    Invalid(Vec<Violation>),
    /// No such order, or another customer's.
    #[error("there is no order with this id")]
    NotFound,
    /// Not a cursor of ours, or one of other filters.
    #[error("the cursor is not one of this list with these filters; start again without it")]
    InvalidCursor,
    /// The customer expected another total.
    #[error("the total is {total}, not {expected}; show the customer the new total and order again")]
    AmountMismatch {
        /// What the client expected.
        expected: i64,
        /// What it costs.
        total: i64,
    },
    /// The total is not a number that every JSON reader holds.
    #[error("the total is too large; order less at once")]
    TotalTooLarge,
    /// The idempotency key does not allow it.
    #[error(transparent)]
    Key(#[from] idempotency::Error),
    /// The event cannot be written.
    #[error("the event cannot be written")]
    Outbox(#[from] waybill_outbox::Error),
    /// The database refused.
    #[error("the database refused")]
    Database(#[from] sqlx::Error),
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let detail = error.to_string();
        match error {
            Error::Invalid(violations) => invalid(detail, violations),
            Error::NotFound => Self::new(StatusCode::NOT_FOUND, "order-not-found", detail),
            Error::InvalidCursor => Self::new(StatusCode::BAD_REQUEST, "invalid-cursor", detail)
                .pointer("/cursor", "must be nextCursor of the page before"),
            Error::AmountMismatch { total, .. } => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "amount-mismatch", detail)
                    .pointer("/expectedAmount", format!("the total is {total}"))
            }
            Error::TotalTooLarge => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "total-too-large", detail),
            Error::Key(error) => error.into(),
            Error::Outbox(source) => Self::internal(source),
            Error::Database(source) => source.into(),
        }
    }
}

fn invalid(detail: String, violations: Vec<Violation>) -> ApiError {
    let problem = ApiError::new(StatusCode::BAD_REQUEST, "validation-failed", detail);
    violations.into_iter().fold(problem, |problem, v| problem.pointer(v.pointer, v.detail))
}
