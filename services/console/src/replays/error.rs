//! Why a replay does not start.

use axum::http::StatusCode;
use waybill_service::http::ApiError;

use crate::plans;

/// A replay that is not started or not found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A group asks for reconciling first.
    #[error(
        "a group of this plan must be reconciled with the outside first; say so with \"acknowledge_reconcile\": true"
    )]
    ReconcileFirst,
    /// No such run.
    #[error("there is no such replay")]
    NotFound,
    /// It has ended.
    #[error("the replay has ended already")]
    Ended,
    /// The plan is at fault.
    #[error(transparent)]
    Plan(#[from] plans::Error),
    /// The database does not answer.
    #[error("the database does not answer")]
    Database(#[from] sqlx::Error),
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::ReconcileFirst => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "acknowledgement-needed", text)
                    .pointer("/acknowledge_reconcile", "must be true")
            }
            Error::NotFound => Self::new(StatusCode::NOT_FOUND, "replay-not-found", text),
            Error::Ended => Self::new(StatusCode::CONFLICT, "replay-ended", text),
            Error::Plan(error) => error.into(),
            Error::Database(error) => error.into(),
        }
    }
}
