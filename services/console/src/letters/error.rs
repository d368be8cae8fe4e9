//! Why a search fails.

use axum::http::StatusCode;
use waybill_service::http::ApiError;

/// A search that is not answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A part of the filter cannot be understood.
    #[error("{0}: {1}")]
    Invalid(&'static str, String),
    /// No dead-letter topic or group has this name.
    #[error("there is no {0} {1:?}")]
    UnknownName(&'static str, String),
    /// A cursor that is not ours.
    #[error("the cursor is damaged")]
    Cursor,
    /// No such dead letter.
    #[error("there is no such dead letter")]
    NotFound,
    /// The database does not answer.
    #[error("the database does not answer")]
    Database(#[from] sqlx::Error),
}

impl Error {
    /// [`Error::Invalid`].
    pub fn invalid(pointer: &'static str, detail: impl Into<String>) -> Self {
        Self::Invalid(pointer, detail.into())
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Invalid(pointer, detail) => {
                Self::new(StatusCode::BAD_REQUEST, "validation-failed", "the request is not valid")
                    .pointer(pointer, detail)
            }
            Error::UnknownName(..) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown-name", text),
            Error::Cursor => Self::new(StatusCode::BAD_REQUEST, "invalid-cursor", text),
            Error::NotFound => Self::new(StatusCode::NOT_FOUND, "letter-not-found", text),
            Error::Database(error) => error.into(),
        }
    }
}
