//! What operators do with tasks: list, retry, cancel; and the purge of what is over.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgPool;

use crate::{Status, TaskId, store};

/// Rows deleted in one step of the purge, so that no transaction of it is long.
const STEP: i64 = 1_000;
/// Most tasks on one page.
const PAGE: u32 = 500;

/// Which tasks to list, newest first.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only this state.
    pub status: Option<Status>,
    /// Only this kind.
    pub kind: Option<String>,
    /// Only this order key.
    pub key: Option<String>,
    /// Only tasks older than this one: the last of the page before.
    pub before: Option<TaskId>,
    /// Most tasks on the page, 1 to 500; 0 means 50.
    pub limit: u32,
}

impl Filter {
    pub(crate) fn rows(&self) -> i64 {
        i64::from(if self.limit == 0 { 50 } else { self.limit.min(PAGE) })
    }
}

/// A task as an operator sees it. The payload may hold what not every operator may see: it has a call of its own,
/// [`payload`].
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// Id.
    pub id: TaskId,
    /// Kind.
    pub kind: String,
    /// Order key.
    pub key: Option<String>,
    /// State.
    pub status: Status,
    /// Pending: not before. Running: end of the lease.
    pub run_at: DateTime<Utc>,
    /// Attempts so far.
    pub attempts: i32,
    /// When an operator asked a running task to stop.
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// The trace in which it was enqueued.
    pub traceparent: Option<String>,
    /// Why the last failed attempt failed, at most 1 KiB.
    pub last_error: Option<String>,
    /// When it was enqueued.
    pub created_at: DateTime<Utc>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
}

/// What became of a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The task is pending and due, with all its attempts before it.
    Retried,
    /// The task is cancelled for good.
    Cancelled,
    /// The task is running; it was asked to stop and decides itself.
    Requested,
    /// Not possible in this state. Nothing was changed.
    Refused(Status),
    /// There is no such task.
    Unknown,
}

/// One page of tasks, newest first. Short for open and failed tasks however large the table is; finished ones are walked
/// from the newest.
///
/// # Errors
/// What the database answers.
pub async fn list(pool: &PgPool, filter: &Filter) -> Result<Vec<Listed>, sqlx::Error> {
    match filter.status {
        Some(Status::Failed) => store::list_failed(pool, filter).await,
        Some(status @ (Status::Pending | Status::Running)) => store::list_open(pool, filter, status).await,
        status => store::list_closed(pool, filter, status).await,
    }
}

/// The payload of a task.
///
/// # Errors
/// What the database answers.
pub async fn payload(pool: &PgPool, id: TaskId) -> Result<Option<serde_json::Value>, sqlx::Error> {
    store::payload(pool, id).await
}

/// Makes a failed task pending again, and a pending one due at once. A task with a key comes before later ones of its
/// key that have not run; those that have run, have passed it.
///
/// # Errors
/// What the database answers.
pub async fn retry(pool: &PgPool, id: TaskId) -> Result<Verdict, sqlx::Error> {
    store::retry(pool, id).await
}

/// Cancels a pending task for good, and gives up a failed one. A running task is asked to stop, and decides itself; one
/// that was asked before and whose lease is over is cancelled for good, for there may be nobody left who knows its kind.
///
/// # Errors
/// What the database answers.
pub async fn cancel(pool: &PgPool, id: TaskId) -> Result<Verdict, sqlx::Error> {
    store::cancel(pool, id).await
}

/// Deletes done and cancelled tasks that ended longer ago than `retention`, at most 1,000 of them, oldest first, and
/// returns how many. Call it again at once while it returns more than 0, and then hourly, from one instance. Failed tasks
/// stay until an operator retries or cancels them.
///
/// # Errors
/// The database failed; nothing of this step is deleted.
pub async fn purge(pool: &PgPool, retention: Duration) -> Result<u64, sqlx::Error> {
    store::purge(pool, retention, STEP).await
}
