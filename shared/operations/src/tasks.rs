//! `/internal/tasks`: list, payload, retry, cancel; for services that have durable tasks.

use axum::Json;
use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use serde::Deserialize;
use sqlx::PgPool;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use waybill_service::auth::Verifier;
use waybill_service::http::{ApiError, Params, Segment, field};
use waybill_task::operate::{self, Filter, Listed};
use waybill_task::{Status, TaskId};

use crate::api::{Answer, Payload, Task, Tasks, Verdict};
use crate::caller::{Actor, Reader, Viewer};
use crate::consumer::{PAGE, PAGE_MAX};

const STATES: [Status; 5] =
    [Status::Pending, Status::Running, Status::Done, Status::Failed, Status::Cancelled];

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

/// The routes, over a database with the tables of [`waybill_task::migrator`].
pub fn router(pool: PgPool, verifier: Verifier) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(payload))
        .routes(routes!(retry))
        .routes(routes!(cancel))
        .with_state(Api { pool, verifier })
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Wanted {
    /// Only in this state.
    #[param(pattern = "^(pending|running|done|failed|cancelled)$")]
    status: Option<String>,
    /// Only of this kind.
    #[serde(default, deserialize_with = "field::optional_text::<1, 255, _>")]
    #[param(min_length = 1, max_length = 255)]
    kind: Option<String>,
    /// Only of this order key, which may be empty.
    #[serde(default, deserialize_with = "field::optional_text::<0, 8192, _>")]
    #[param(min_length = 0, max_length = 8192)]
    key: Option<String>,
    /// `next` of the page before: only tasks older than this one.
    before: Option<Uuid>,
    /// Elements of a page: 50 if absent, at most 500.
    #[serde(default, deserialize_with = "field::optional_integer::<1, PAGE_MAX, _, _>")]
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

/// Tasks
///
/// Newest first, without payloads.
#[utoipa::path(get, path = "/internal/tasks", tag = "tasks", params(Wanted), responses((status = 200, description = "One page", body = Tasks)))]
async fn list(
    State(api): State<Api>,
    _: Viewer,
    Params(wanted): Params<Wanted>,
) -> Result<Json<Tasks>, ApiError> {
    let limit = wanted.limit.unwrap_or(PAGE as u32);
    let filter = Filter {
        status: wanted.status.as_deref().map(status).transpose()?,
        kind: wanted.kind,
        key: wanted.key,
        before: wanted.before.map(TaskId::from),
        limit,
    };
    let tasks = operate::list(&api.pool, &filter).await?;
    let full = tasks.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
    let next = tasks.last().filter(|_| full).map(|task| task.id.as_uuid());
    Ok(Json(Tasks { tasks: tasks.into_iter().map(Task::from).collect(), next }))
}

/// What a task is given
#[utoipa::path(get, path = "/internal/tasks/{id}/payload", tag = "tasks", params(("id" = Uuid, Path, description = "Task")), responses((status = 200, description = "The payload", body = Payload)))]
async fn payload(
    State(api): State<Api>,
    _: Reader,
    Segment(id): Segment<String>,
) -> Result<Json<Payload>, ApiError> {
    let payload = operate::payload(&api.pool, task(&id)?).await?;
    let unknown = || ApiError::new(StatusCode::NOT_FOUND, "task-not-found", "there is no such task");
    Ok(Json(Payload { payload: payload.ok_or_else(unknown)? }))
}

/// Retry a task
#[utoipa::path(post, path = "/internal/tasks/{id}/retry", tag = "tasks", params(("id" = Uuid, Path, description = "Task")), responses((status = 200, description = "What became of it", body = Answer)))]
async fn retry(
    State(api): State<Api>,
    Actor(subject): Actor,
    Segment(id): Segment<String>,
) -> Result<Json<Answer>, ApiError> {
    let verdict = operate::retry(&api.pool, task(&id)?).await?;
    tracing::info!(%subject, task.id = id, ?verdict, "an operator retried a task");
    Ok(Json(verdict.into()))
}

/// Cancel a task
#[utoipa::path(post, path = "/internal/tasks/{id}/cancel", tag = "tasks", params(("id" = Uuid, Path, description = "Task")), responses((status = 200, description = "What became of it", body = Answer)))]
async fn cancel(
    State(api): State<Api>,
    Actor(subject): Actor,
    Segment(id): Segment<String>,
) -> Result<Json<Answer>, ApiError> {
    let verdict = operate::cancel(&api.pool, task(&id)?).await?;
    tracing::info!(%subject, task.id = id, ?verdict, "an operator cancelled a task");
    Ok(Json(verdict.into()))
}

fn task(id: &str) -> Result<TaskId, ApiError> {
    id.parse::<Uuid>().map(TaskId::from).map_err(|_| ApiError::invalid("/id", "must be a UUID"))
}

fn status(text: &str) -> Result<Status, ApiError> {
    STATES.into_iter().find(|status| status.as_str() == text).ok_or_else(|| {
        let names = STATES.map(Status::as_str).join(", ");
        ApiError::invalid("/status", format!("must be one of {names}"))
    })
}

impl From<Listed> for Task {
    fn from(task: Listed) -> Self {
        Self {
            id: task.id.as_uuid(),
            kind: task.kind,
            key: task.key,
            status: task.status.to_string(),
            run_at: task.run_at,
            attempts: task.attempts,
            cancel_requested_at: task.cancel_requested_at,
            traceparent: task.traceparent,
            last_error: task.last_error,
            created_at: task.created_at,
            updated_at: task.updated_at,
        }
    }
}

impl From<operate::Verdict> for Answer {
    fn from(verdict: operate::Verdict) -> Self {
        let (verdict, status) = match verdict {
            operate::Verdict::Retried => (Verdict::Retried, None),
            operate::Verdict::Cancelled => (Verdict::Cancelled, None),
            operate::Verdict::Requested => (Verdict::Requested, None),
            operate::Verdict::Refused(status) => (Verdict::Refused, Some(status.to_string())),
            operate::Verdict::Unknown => (Verdict::Unknown, None),
        };
        Self { verdict, status }
    }
}
