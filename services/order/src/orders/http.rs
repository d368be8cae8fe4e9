//! Routes of orders.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::header::{ETAG, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use waybill_service::auth::{Principal, Scope};
use waybill_service::http::{self, ApiError, Params};

use super::list::ListQuery;
use super::{Error, Order, PlaceOrder, Status, find, list, place};
use crate::app::AppState;
use crate::idempotency::Key;
use crate::paging::Paged;

/// `/v1/orders` and below.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list_orders, place_order)).routes(routes!(find_order))
}

/// Place an order
///
/// Prices are the server's. An order paid on delivery is confirmed at once, one paid by card waits for payment. The same
/// request under the same key is answered as before, with `Idempotent-Replayed: true`, and makes no second order.
#[utoipa::path(
    post,
    path = "/v1/orders",
    tag = "orders",
    request_body(
        content = PlaceOrder,
        content_type = "application/json",
        example = json!({
            "items": [{"sku": "TEA-100", "quantity": 2}],
            "currency": "KRW",
            "paymentMethod": "ON_DELIVERY",
            "expectedAmount": 9000,
        }),
    ),
    params((
        "Idempotency-Key" = String,
        Header,
        description = "1 to 255 visible ASCII characters, bare or in double quotes; a UUID for each new order",
        example = "5f0c9d0e-6d0c-4e53-9d5f-0c9d0e6d0c4e",
        min_length = 1,
        max_length = 255,
        pattern = "^[!#-~][!-~]{0,254}$",
    )),
    responses((
        status = 201,
        description = "The order, placed by this request or by an earlier one with this key",
        body = Order,
        headers(
            ("Location" = String, description = "Path of the order"),
            ("ETag" = String, description = "The order's version"),
            ("Idempotent-Replayed" = Option<String>, description = "`true` when an earlier answer is repeated"),
        ),
    )),
)]
async fn place_order(
    State(state): State<AppState>,
    Customer(customer): Customer,
    key: Key,
    http::Json(request): http::Json<PlaceOrder>,
) -> Result<Response, ApiError> {
    let outcome = place::place(&state.orders, customer, &key, request).await?;
    // A repeated answer shows the order as it was placed.
    Ok(([(ETAG, etag(1))], outcome).into_response())
}

/// Read an order
///
/// A customer sees only their own; operators and services see all.
#[utoipa::path(
    get,
    path = "/v1/orders/{id}",
    tag = "orders",
    params(
        ("id" = Uuid, Path, description = "Order id"),
        ("If-None-Match" = Option<String>, Header, description = "Versions that the client has, or `*`", example = "\"1\""),
    ),
    responses(
        (status = 200, description = "The order", body = Order, headers(("ETag" = String, description = "The order's version"))),
        (status = 304, description = "The client has this version", headers(("ETag" = String, description = "The order's version"))),
    ),
)]
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

/// List the caller's orders
///
/// Newest first. The filters hold for all pages of a cursor.
#[utoipa::path(
    get,
    path = "/v1/orders",
    tag = "orders",
    params(
        ("status" = Option<Status>, Query, description = "Only orders in this state"),
        ("createdFrom" = Option<DateTime<Utc>>, Query, description = "Placed at or after"),
        ("createdTo" = Option<DateTime<Utc>>, Query, description = "Placed before; must be after `createdFrom`"),
        ("limit" = Option<i64>, Query, description = "Elements of a page, 20 if absent", minimum = 1, maximum = 100),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before", max_length = 43),
    ),
    responses((
        status = 200,
        description = "One page",
        body = Paged<Order>,
        headers(("Link" = Option<String>, description = "The next page, if there is one")),
    )),
)]
async fn list_orders(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<ListQuery>,
) -> Result<Response, ApiError> {
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

/// Whether the client has this version already (RFC 9110, §13.1.2: weak comparison).
fn is_known(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let given = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = given.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).as_bytes() == etag.as_bytes())
}

fn etag(version: i64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{version}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}
