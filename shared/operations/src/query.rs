//! Parts of a request whose faults name their field.

use std::fmt::Display;
use std::str::FromStr;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use waybill_service::http::ApiError;

/// Elements of a page when the caller does not say, and at most.
pub(crate) const PAGE: u32 = 50;
pub(crate) const PAGE_MAX: u32 = 500;

/// A query of texts, each once and no other.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query: Result<Query<T>, QueryRejection> = Query::try_from_uri(&parts.uri);
        query
            .map(|Query(query)| Self(query))
            .map_err(|e| ApiError::new(StatusCode::BAD_REQUEST, "invalid-request", e.body_text()))
    }
}

/// 400 `validation-failed` for one field.
pub(crate) fn invalid(pointer: impl Into<String>, detail: impl Display) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "validation-failed", "the request is not valid")
        .pointer(pointer, detail.to_string())
}

/// A value of a query or path.
pub(crate) fn parse<T: FromStr>(
    pointer: &str,
    what: &str,
    text: Option<&str>,
) -> Result<Option<T>, ApiError> {
    let parse = |text: &str| text.parse().map_err(|_| invalid(pointer, format_args!("must be {what}")));
    text.map(parse).transpose()
}

/// A name to compare with. PostgreSQL's text has no zero byte.
pub(crate) fn name(pointer: &str, text: Option<String>) -> Result<Option<String>, ApiError> {
    match text {
        Some(text) if text.contains('\0') => Err(invalid(pointer, "must not hold a zero byte")),
        text => Ok(text),
    }
}

/// The size of a page.
pub(crate) fn limit(text: Option<&str>) -> Result<u32, ApiError> {
    let wrong = || invalid("/limit", format_args!("must be between 1 and {PAGE_MAX}"));
    let Some(text) = text else { return Ok(PAGE) };
    text.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit)).ok_or_else(wrong)
}
