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

    /// The problem, where the filter is a member of a body: its pointers are below that member's.
    pub(crate) fn below(self, member: &str) -> ApiError {
        let text = self.to_string();
        match self {
            Self::Invalid(pointer, detail) => ApiError::invalid(format!("{member}{pointer}"), detail),
            Self::UnknownName(kind, _) => {
                let detail = format!("must be a {kind} that has dead letters");
                ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown-name", text)
                    .pointer(format!("{member}/{kind}"), detail)
            }
            Self::Cursor => ApiError::new(StatusCode::BAD_REQUEST, "invalid-cursor", text)
                .pointer("/cursor", "must be next of the page before"),
            Self::NotFound => ApiError::new(StatusCode::NOT_FOUND, "letter-not-found", text),
            Self::Database(error) => error.into(),
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        error.below("")
    }
}
