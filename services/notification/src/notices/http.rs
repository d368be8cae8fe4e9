//! `GET /v1/notifications?orderId=`.

use axum::Json;
use axum::extract::{FromRef, State};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use waybill_service::auth::{Principal, Scope, Verifier};
use waybill_service::http::{ApiError, Params};
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

/// The routes with their description.
pub fn router(pool: PgPool, verifier: Verifier) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(list)).with_state(Api { pool, verifier })
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// The order that is told of.
    order_id: Uuid,
}

/// What was told of an order.
#[derive(Serialize, ToSchema)]
struct List {
    items: Vec<Item>,
}

/// One notification.
#[derive(Serialize, ToSchema)]
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

/// What was told of an order
///
/// Somebody else's order lists like one that nothing was sent about: its existence is not told.
#[utoipa::path(
    get,
    path = "/v1/notifications",
    tag = "notifications",
    params(ListQuery),
    responses((status = 200, description = "All of the order", body = List)),
)]
async fn list(
    State(api): State<Api>,
    principal: Principal,
    Params(ListQuery { order_id }): Params<ListQuery>,
) -> Result<Json<List>, ApiError> {
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
