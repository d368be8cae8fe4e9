//! `/v1/dlt/replays`.

use axum::Json;
use axum::extract::State as Held;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use waybill_service::auth::Role;
use waybill_service::http::{self, ApiError, Segment};

use super::view::{Replay, ReplayRequest, Replays};
use super::{Error, start, store};
use crate::api::{Api, Operator};

/// The routes.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(start_replay, list)).routes(routes!(find)).routes(routes!(cancel))
}

/// Replay a plan
///
/// Goes on in the background, whichever console process lives: the canary first, the rest after its outcomes, each key in
/// order and only up to its first failure.
#[utoipa::path(post, path = "/v1/dlt/replays", tag = "act", request_body = ReplayRequest, responses((status = 202, description = "The run", body = Replay)))]
async fn start_replay(
    Held(api): Held<Api>,
    operator: Operator,
    http::Json(request): http::Json<ReplayRequest>,
) -> Result<(StatusCode, Json<Replay>), ApiError> {
    operator.require(Role::Act)?;
    Ok((StatusCode::ACCEPTED, Json(start::start(&api, &operator, &request).await?)))
}

/// Runs, latest first
#[utoipa::path(get, path = "/v1/dlt/replays", tag = "act", responses((status = 200, description = "The latest 50", body = Replays)))]
async fn list(Held(api): Held<Api>, operator: Operator) -> Result<Json<Replays>, ApiError> {
    operator.require(Role::View)?;
    Ok(Json(Replays { replays: store::list(&api.pool).await.map_err(Error::from)? }))
}

/// Progress of a run
#[utoipa::path(
    get,
    path = "/v1/dlt/replays/{id}",
    tag = "act",
    params(("id" = Uuid, Path, description = "Run")),
    responses((status = 200, description = "The run", body = Replay)),
)]
async fn find(
    Held(api): Held<Api>,
    operator: Operator,
    Segment(id): Segment<Uuid>,
) -> Result<Json<Replay>, ApiError> {
    operator.require(Role::View)?;
    Ok(Json(start::find(&api.pool, id).await?))
}

/// Stop a run
///
/// At its next record. What is sent is sent; its outcomes are still taken.
#[utoipa::path(
    post,
    path = "/v1/dlt/replays/{id}/cancel",
    tag = "act",
    params(("id" = Uuid, Path, description = "Run")),
    responses((status = 200, description = "The run", body = Replay)),
)]
async fn cancel(
    Held(api): Held<Api>,
    operator: Operator,
    Segment(id): Segment<Uuid>,
) -> Result<Json<Replay>, ApiError> {
    operator.require(Role::Act)?;
    Ok(Json(start::cancel(&api, &operator, id).await?))
}
