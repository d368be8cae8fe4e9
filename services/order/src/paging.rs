//! Keyset pages: `{items, nextCursor}` and a `Link` to the next page. No totals: counting would read everything.

use axum::Json;
use axum::http::HeaderValue;
use axum::http::header::LINK;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use waybill_service::http::field;

use crate::orders::Violation;

/// Elements of a page when the client does not say.
pub const DEFAULT_LIMIT: i64 = 20;
/// Most elements of a page.
pub const MAX_LIMIT: i64 = 100;

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Paged<T> {
    /// What is on the page.
    items: Vec<T>,
    /// Cursor of the next page; null on the last.
    #[schema(required = true)]
    next_cursor: Option<String>,
    #[serde(skip)]
    link: Option<String>,
}

impl<T> Paged<T> {
    /// Of rows read with one more than `limit`. `filters` is the query that the next page repeats.
    pub(crate) fn new(
        mut rows: Vec<T>,
        limit: i64,
        path: &str,
        filters: &str,
        cursor: impl FnOnce(&T) -> String,
    ) -> Self {
        let kept = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = rows.len() > kept;
        rows.truncate(kept);
        let next_cursor = rows.last().filter(|_| more).map(cursor);
        let separator = if filters.is_empty() { "" } else { "&" };
        let link = next_cursor
            .as_ref()
            .map(|next| format!("<{path}?{filters}{separator}limit={limit}&cursor={next}>; rel=\"next\""));
        Self { items: rows, next_cursor, link }
    }
}

impl<T: Serialize> IntoResponse for Paged<T> {
    fn into_response(self) -> Response {
        let link = self.link.as_deref().and_then(|link| HeaderValue::try_from(link).ok());
        let mut response = Json(self).into_response();
        if let Some(link) = link {
            response.headers_mut().insert(LINK, link);
        }
        response
    }
}

/// The size of a page.
pub(crate) fn limit(text: Option<&str>) -> Result<i64, Violation> {
    let Some(text) = text else { return Ok(DEFAULT_LIMIT) };
    field::integer_of(text, 1, MAX_LIMIT).map_err(|detail| Violation::new("/limit", detail))
}
