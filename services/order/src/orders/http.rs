//! Routes of orders.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header::ETAG;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use waybill_service::auth::{Principal, Scope};
use waybill_service::http::{self, ApiError};

use super::list::ListQuery;
use super::{Error, PlaceOrder, find, list, place};
use crate::app::AppState;
use crate::idempotency::Key;

/// `/v1/orders` and below.
pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route(place::ROUTE, get(list_orders).post(place_order))
        .route("/v1/orders/{id}", get(find_order))
}

async fn place_order(
    State(state): State<AppState>,
    principal: Principal,
    key: Key,
    http::Json(request): http::Json<PlaceOrder>,
) -> Result<Response, ApiError> {
    // The order belongs to the token's subject, which for other scopes is no customer.
    principal.require(Scope::Customer)?;
    let outcome = place::place(&state.orders, principal.customer, &key, request).await?;
    // A repeated answer shows the order as it was placed.
    Ok(([(ETAG, etag(1))], outcome).into_response())
}

async fn find_order(
    State(state): State<AppState>,
    principal: Principal,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|_| Error::NotFound)?;
    let order = find::find(&state.orders, principal, &id).await?;
    Ok((AppendHeaders([(ETAG, etag(order.version))]), Json(order)).into_response())
}

async fn list_orders(
    State(state): State<AppState>,
    principal: Principal,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(invalid_query)?;
    Ok(list::list(&state.orders, principal.customer, query).await?.into_response())
}

/// An unknown or repeated parameter.
pub(crate) fn invalid_query(rejection: QueryRejection) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid-request", rejection.body_text())
}

fn etag(version: i64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{version}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}
