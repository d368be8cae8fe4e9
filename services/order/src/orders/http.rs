//! Routes of orders.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::header::{ETAG, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use uuid::Uuid;
use waybill_service::auth::{Principal, Scope};
use waybill_service::http::{self, ApiError};

use super::list::ListQuery;
use super::{Error, PlaceOrder, find, list, place};
use crate::app::AppState;
use crate::idempotency::Key;
use crate::strict::Strict;

/// `/v1/orders` and below.
pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route(place::ROUTE, get(list_orders).post(place_order))
        .route("/v1/orders/{id}", get(find_order))
}

async fn place_order(
    State(state): State<AppState>,
    Customer(customer): Customer,
    key: Key,
    http::Json(Strict(request)): http::Json<Strict<PlaceOrder>>,
) -> Result<Response, ApiError> {
    let outcome = place::place(&state.orders, customer, &key, request).await?;
    // A repeated answer shows the order as it was placed.
    Ok(([(ETAG, etag(1))], outcome).into_response())
}

async fn find_order(
    State(state): State<AppState>,
    principal: Principal,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|_| Error::NotFound)?;
    let order = find::find(&state.orders, principal, &id).await?;
    let etag = etag(order.version);
    if is_known(&headers, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, [(ETAG, etag)]).into_response());
    }
    Ok(([(ETAG, etag)], Json(order)).into_response())
}

async fn list_orders(
    State(state): State<AppState>,
    principal: Principal,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(invalid_query)?;
    Ok(list::list(&state.orders, principal.customer, query).await?.into_response())
}

/// A caller with the scope `customer`: an order belongs to the token's subject, which for other scopes is no
/// customer. Refused before the key and the body are looked at.
struct Customer(Uuid);

impl FromRequestParts<AppState> for Customer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let principal = Principal::from_request_parts(parts, state).await?;
        principal.require(Scope::Customer)?;
        Ok(Self(principal.customer))
    }
}

/// An unknown or repeated parameter.
pub(crate) fn invalid_query(rejection: QueryRejection) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid-request", rejection.body_text())
}

/// Whether the client has this version already (RFC 9110, §13.1.2: weak comparison).
fn is_known(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let given = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = given.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).as_bytes() == etag.as_bytes())
}

fn etag(version: i64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{version}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}
