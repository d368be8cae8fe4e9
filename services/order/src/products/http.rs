//! Routes of the catalogue.

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use waybill_service::auth::Principal;
use waybill_service::http::ApiError;

use super::store;
use crate::app::AppState;
use crate::orders::{Error, invalid_query, is_sku};
use crate::paging::{self, Paged};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    limit: Option<String>,
    cursor: Option<String>,
}

/// `/v1/products`.
pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/v1/products", get(list_products))
}

async fn list_products(
    State(state): State<AppState>,
    _: Principal,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(invalid_query)?;
    let limit = paging::limit(query.limit.as_deref()).map_err(|violation| Error::Invalid(vec![violation]))?;
    let after = query.cursor.as_deref().map(position).transpose()?.unwrap_or_default();
    let mut connection = state.orders.pool.acquire().await?;
    let rows = store::list(&mut connection, &after, limit + 1).await?;
    drop(connection);
    let page = Paged::new(rows, limit, "/v1/products", "", |last| URL_SAFE_NO_PAD.encode(&last.sku));
    Ok(page.into_response())
}

/// The last product of the page before.
fn position(cursor: &str) -> Result<String, Error> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    let sku = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    sku.filter(|sku| is_sku(sku)).ok_or(Error::InvalidCursor)
}
