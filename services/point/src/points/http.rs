//! `GET /v1/points/{customer}` and `/entries`.

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRef, Path, Query, State};
use axum::http::header::LINK;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use uuid::Uuid;
use waybill_service::auth::{Principal, Scope, Verifier};
use waybill_service::http::ApiError;

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

/// The routes, for `http::frame`.
pub fn router(pool: PgPool, verifier: Verifier) -> Router {
    Router::new()
        .route("/v1/points/{customer}", get(balance))
        .route("/v1/points/{customer}/entries", get(entries))
        .with_state(Api { pool, verifier })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Balance {
    customer_id: Uuid,
    available: i64,
    held: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageQuery {
    cursor: Option<String>,
    limit: Option<i64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    items: Vec<Item>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
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

async fn balance(
    State(api): State<Api>,
    principal: Principal,
    Path(customer): Path<String>,
) -> Result<Json<Balance>, ApiError> {
    let customer_id = visible(principal, &customer)?;
    // No account yet is a balance of nothing: a customer exists before the first order is counted.
    let account = store::account(&api.pool, customer_id).await?.unwrap_or_default();
    Ok(Json(Balance { customer_id, available: account.available, held: account.held }))
}

async fn entries(
    State(api): State<Api>,
    principal: Principal,
    Path(customer): Path<String>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let customer_id = visible(principal, &customer)?;
    let Query(PageQuery { cursor, limit }) =
        query.map_err(|e| ApiError::new(StatusCode::BAD_REQUEST, "invalid-request", e.body_text()))?;
    let limit = limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "validation-failed",
            "the request has wrong fields",
        )
        .pointer("/limit", format!("must be between 1 and {PAGE_MAX}")));
    }
    let before = cursor.map(|text| text.parse::<Uuid>()).transpose().map_err(|_| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "invalid-cursor",
            "the cursor is not one of ours; start without it",
        )
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
