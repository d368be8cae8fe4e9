//! `POST /v1/dlt/plans` and a plan again.

use axum::Json;
use axum::extract::State as Held;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use waybill_service::auth::Role;
use waybill_service::http::{self, ApiError, Segment};

use super::view::{Plan, PlanRequest};
use super::{load, make};
use crate::api::{Api, Operator};

/// `/v1/dlt/plans`.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(make_plan)).routes(routes!(find))
}

/// Plan a replay
///
/// A dry run: what would be sent to whom, and what not and why. Nothing is sent.
#[utoipa::path(post, path = "/v1/dlt/plans", tag = "act", request_body = PlanRequest, responses((status = 200, description = "The plan", body = Plan)))]
async fn make_plan(
    Held(api): Held<Api>,
    operator: Operator,
    http::Json(request): http::Json<PlanRequest>,
) -> Result<Json<Plan>, ApiError> {
    operator.require(Role::Act)?;
    Ok(Json(make::make(&api, &operator, request).await?))
}

/// A plan again
#[utoipa::path(
    get,
    path = "/v1/dlt/plans/{id}",
    tag = "act",
    params(("id" = Uuid, Path, description = "Plan")),
    responses((status = 200, description = "The plan as it was made", body = Plan)),
)]
async fn find(
    Held(api): Held<Api>,
    operator: Operator,
    Segment(id): Segment<Uuid>,
) -> Result<Json<Plan>, ApiError> {
    operator.require(Role::View)?;
    let mut connection = api.pool.acquire().await?;
    Ok(Json(load(&mut connection, id).await?))
}
