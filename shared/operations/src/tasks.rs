//! `/internal/tasks`: list, payload, retry, cancel; for services that have durable tasks.

use axum::extract::{FromRef, Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use sqlx::PgPool;
use uuid::Uuid;
use waybill_service::auth::Verifier;
use waybill_service::http::ApiError;
use waybill_task::operate::{self, Filter, Listed};
use waybill_task::{Status, TaskId};

use crate::api::{Answer, Payload, Task, Tasks, Verdict};
use crate::caller::{Actor, Reader, Viewer};
use crate::query::{Params, invalid, limit, name, parse};

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
pub fn router(pool: PgPool, verifier: Verifier) -> Router {
    Router::new()
        .route("/internal/tasks", get(list))
        .route("/internal/tasks/{id}/payload", get(payload))
        .route("/internal/tasks/{id}/retry", post(retry))
        .route("/internal/tasks/{id}/cancel", post(cancel))
        .with_state(Api { pool, verifier })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    status: Option<String>,
    kind: Option<String>,
    key: Option<String>,
    before: Option<String>,
    limit: Option<String>,
}

async fn list(
    State(api): State<Api>,
    _: Viewer,
    Params(wanted): Params<Wanted>,
) -> Result<Json<Tasks>, ApiError> {
    let limit = limit(wanted.limit.as_deref())?;
    let filter = Filter {
        status: wanted.status.as_deref().map(status).transpose()?,
        kind: name("/kind", wanted.kind)?,
        key: name("/key", wanted.key)?,
        before: parse::<Uuid>("/before", "the id of a task", wanted.before.as_deref())?.map(TaskId::from),
        limit,
    };
    let tasks = operate::list(&api.pool, &filter).await?;
    let full = tasks.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
    let next = tasks.last().filter(|_| full).map(|task| task.id.as_uuid());
    Ok(Json(Tasks { tasks: tasks.into_iter().map(Task::from).collect(), next }))
}

async fn payload(
    State(api): State<Api>,
    _: Reader,
    Path(id): Path<String>,
) -> Result<Json<Payload>, ApiError> {
    let payload = operate::payload(&api.pool, task(&id)?).await?;
    let unknown = || ApiError::new(StatusCode::NOT_FOUND, "task-not-found", "there is no such task");
    Ok(Json(Payload { payload: payload.ok_or_else(unknown)? }))
}

async fn retry(
    State(api): State<Api>,
    Actor(subject): Actor,
    Path(id): Path<String>,
) -> Result<Json<Answer>, ApiError> {
    let verdict = operate::retry(&api.pool, task(&id)?).await?;
    tracing::info!(%subject, task.id = id, ?verdict, "an operator retried a task");
    Ok(Json(verdict.into()))
}

async fn cancel(
    State(api): State<Api>,
    Actor(subject): Actor,
    Path(id): Path<String>,
) -> Result<Json<Answer>, ApiError> {
    let verdict = operate::cancel(&api.pool, task(&id)?).await?;
    tracing::info!(%subject, task.id = id, ?verdict, "an operator cancelled a task");
    Ok(Json(verdict.into()))
}

fn task(id: &str) -> Result<TaskId, ApiError> {
    id.parse::<Uuid>().map(TaskId::from).map_err(|_| invalid("/id", "must be the id of a task"))
}

fn status(text: &str) -> Result<Status, ApiError> {
    STATES.into_iter().find(|status| status.as_str() == text).ok_or_else(|| {
        let names = STATES.map(Status::as_str).join(", ");
        invalid("/status", format_args!("must be one of {names}"))
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
