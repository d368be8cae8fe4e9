//! Why there is no plan.

use axum::http::StatusCode;
use uuid::Uuid;
use waybill_service::http::ApiError;

use crate::letters;

/// A plan that is not made or not found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither filter nor ids, and not said that everything is meant.
    #[error("a plan over everything needs \"all\": true")]
    Unfiltered,
    /// Out of bounds.
    #[error("{0}: {1}")]
    Invalid(&'static str, String),
    /// An id that is not known.
    #[error("there is no dead letter {0}")]
    UnknownItem(Uuid),
    /// No such plan.
    #[error("there is no such plan; plans are kept for seven days")]
    NotFound,
    /// The filter is at fault.
    #[error(transparent)]
    Letters(#[from] letters::Error),
    /// The database does not answer.
    #[error("the database does not answer")]
    Database(#[from] sqlx::Error),
    /// The broker does not tell its topics.
    #[error("the broker does not tell its topics")]
    Broker(#[source] anyhow::Error),
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Unfiltered => Self::invalid("/all", text),
            Error::Invalid(pointer, detail) => Self::invalid(pointer, detail),
            Error::UnknownItem(_) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "letter-not-found", text)
                .pointer("/ids", "must be ids of dead letters"),
            Error::NotFound => Self::new(StatusCode::NOT_FOUND, "plan-not-found", text),
            Error::Letters(error) => error.below("/filter"),
            Error::Database(error) => error.into(),
            Error::Broker(cause) => Self::new(StatusCode::BAD_GATEWAY, "broker-unavailable", text)
                .source(std::io::Error::other(cause.to_string())),
        }
    }
}
