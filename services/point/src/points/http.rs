//! `GET /v1/points/{customer}` and `/entries`.

use axum::Json;
use axum::extract::{FromRef, State};
use axum::http::header::LINK;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use waybill_service::auth::{Principal, Scope, Verifier};
use waybill_service::http::{ApiError, Params, Segment, field};

use super::store::{self, EntryRow};

/// Entries of a page when `limit` is not given, and at most.
const PAGE: i64 = 20;
const PAGE_MAX: i64 = 100;

#[derive(Clone)]
struct Api {
    pool: PgPool,
    verifier: Verifier,
}

impl FromRef<Api> for Verifier {
    fn from_ref(api: &Api) -> Self {
        api.verifier.clone()
    }
}

/// The routes with their description.
pub fn router(pool: PgPool, verifier: Verifier) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(balance)).routes(routes!(entries)).with_state(Api { pool, verifier })
}

/// What a customer has.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Balance {
    customer_id: Uuid,
    available: i64,
    held: i64,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PageQuery {
    /// `nextCursor` of the page before.
    #[param(value_type = Option<Uuid>)]
    cursor: Option<String>,
    /// Elements of a page: 20 if absent, at most 100.
    #[serde(default, deserialize_with = "field::optional_integer::<1, PAGE_MAX, _, _>")]
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
}

/// One page.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Page {
    items: Vec<Item>,
    next_cursor: Option<String>,
}

/// One movement of points.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Item {
    entry_id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    order_id: Option<Uuid>,
    kind: String,
    amount: i64,
    created_at: DateTime<Utc>,
}

impl From<EntryRow> for Item {
    fn from(row: EntryRow) -> Self {
        let EntryRow { entry_id, order_id, kind, amount, created_at } = row;
        Self { entry_id, order_id, kind, amount, created_at }
    }
}

/// What a customer has
///
/// A customer sees only the own account; operators and services see all. No account yet is zero.
#[utoipa::path(
    get,
    path = "/v1/points/{customer}",
    tag = "points",
    params(("customer" = Uuid, Path, description = "Customer id")),
    responses((status = 200, description = "The balance", body = Balance)),
)]
async fn balance(
    State(api): State<Api>,
    principal: Principal,
    Segment(customer): Segment<String>,
) -> Result<Json<Balance>, ApiError> {
    let customer_id = visible(principal, &customer)?;
    // No account yet is a balance of nothing: a customer exists before the first order is counted.
    let account = store::account(&api.pool, customer_id).await?.unwrap_or_default();
    Ok(Json(Balance { customer_id, available: account.available, held: account.held }))
}

/// What moved a customer's points
///
/// Newest first.
#[utoipa::path(
    get,
    path = "/v1/points/{customer}/entries",
    tag = "points",
    params(("customer" = Uuid, Path, description = "Customer id"), PageQuery),
    responses((
        status = 200,
        description = "One page",
        body = Page,
        headers(("Link" = Option<String>, description = "The next page, if there is one")),
    )),
)]
async fn entries(
    State(api): State<Api>,
    principal: Principal,
    Segment(customer): Segment<String>,
    Params(PageQuery { cursor, limit }): Params<PageQuery>,
) -> Result<Response, ApiError> {
    let customer_id = visible(principal, &customer)?;
    let limit = limit.unwrap_or(PAGE);
    let before = cursor.map(|text| text.parse::<Uuid>()).transpose().map_err(|_| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "invalid-cursor",
            "the cursor is not one of ours; start without it",
        )
        .pointer("/cursor", "must be nextCursor of the page before")
    })?;
    // One more than asked for tells whether there is a next page.
    let mut rows = store::entries(&api.pool, customer_id, before, limit + 1).await?;
    let kept = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = rows.len() > kept;
    rows.truncate(kept);
    let next_cursor = rows.last().filter(|_| more).map(|row| row.entry_id.to_string());
    let link = next_cursor.as_ref().and_then(|next| {
        let link = format!("</v1/points/{customer_id}/entries?limit={limit}&cursor={next}>; rel=\"next\"");
        HeaderValue::try_from(link).ok()
    });
    let mut response =
        Json(Page { items: rows.into_iter().map(Item::from).collect(), next_cursor }).into_response();
    if let Some(link) = link {
        response.headers_mut().insert(LINK, link);
    }
    Ok(response)
}

/// The customer asked for, if the caller may see it. Somebody else's account answers as if it were not there, so
/// that ids cannot be probed.
fn visible(principal: Principal, customer: &str) -> Result<Uuid, ApiError> {
    let not_found = || {
        ApiError::new(
            StatusCode::NOT_FOUND,
            "customer-not-found",
            "there is no such customer, or it is not yours",
        )
    };
    let customer: Uuid = customer.parse().map_err(|_| not_found())?;
    match principal.scope {
        Scope::Operator | Scope::Service => Ok(customer),
        Scope::Customer if principal.customer == customer => Ok(customer),
        Scope::Customer => Err(not_found()),
    }
}
