//! `GET /v1/notifications?orderId=`.

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRef, Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use uuid::Uuid;
use waybill_service::auth::{Principal, Scope, Verifier};
use waybill_service::http::ApiError;
use waybill_task::Status;

use super::store::{self, NotificationRow};

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
    Router::new().route("/v1/notifications", get(list)).with_state(Api { pool, verifier })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListQuery {
    order_id: Uuid,
}

#[derive(Serialize)]
struct List {
    items: Vec<Item>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    notification_id: Uuid,
    kind: String,
    channel: String,
    status: &'static str,
    body: String,
    attempts: i32,
    created_at: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
}

/// Somebody else's order lists like one that nothing was sent about: its existence is not told.
async fn list(
    State(api): State<Api>,
    principal: Principal,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<List>, ApiError> {
    let Query(ListQuery { order_id }) =
        query.map_err(|e| ApiError::new(StatusCode::BAD_REQUEST, "invalid-request", e.body_text()))?;
    let staff = match principal.scope {
        Scope::Operator | Scope::Service => true,
        Scope::Customer => false,
    };
    let only = (!staff).then_some(principal.customer);
    let rows = store::list(&api.pool, order_id, only).await?;
    Ok(Json(List { items: rows.into_iter().map(|row| item(row, staff)).collect() }))
}

fn item(row: NotificationRow, staff: bool) -> Item {
    let status = status(&row);
    Item {
        notification_id: row.notification_id,
        kind: row.kind,
        channel: row.channel,
        status,
        body: row.body,
        attempts: row.attempts,
        created_at: row.created_at,
        sent_at: row.sent_at,
        // How it failed is the operators' concern.
        last_error: row.last_error.filter(|_| staff),
    }
}

fn status(row: &NotificationRow) -> &'static str {
    match (row.sent_at, row.task.clone().map(Status::from)) {
        (Some(_), _) => "sent",
        (None, Some(Status::Pending | Status::Running)) if row.last_error.is_some() => "retrying",
        (None, Some(Status::Pending | Status::Running)) => "pending",
        (None, Some(Status::Failed)) => "failed",
        // Finished tasks are purged, failed ones never: what is unsent without one was cancelled.
        (None, Some(Status::Cancelled | Status::Done) | None) => "cancelled",
    }
}
