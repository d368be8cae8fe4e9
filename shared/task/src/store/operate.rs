//! Statements of operators and of the purge. They run in sessions of the caller's: each has one index to go by, which
//! its literal conditions name.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgPool;
use uuid::Uuid;

use crate::operate::{Filter, Listed, Verdict};
use crate::{Status, TaskId};

/// A page of tasks under a condition. $1 kind, $2 key, $3 before, $4 rows.
macro_rules! list {
    ($condition:literal, $filter:expr $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            Listed,
            r#"
            select id as "id: Uuid", kind, key, status as "status: String", run_at, attempts, cancel_requested_at,
                   traceparent, last_error, created_at, updated_at
            from messaging.task
            where ($1::text is null or kind = $1)
              and ($2::text is null or key = $2)
              and ($3::uuid is null or id < $3)
              and "# + $condition + r#"
            order by id desc
            limit $4
            "#,
            $filter.kind.as_deref(),
            $filter.key.as_deref(),
            $filter.before.map(TaskId::as_uuid),
            $filter.rows(),
            $($argument),*
        )
    };
}

pub(crate) async fn list_failed(pool: &PgPool, filter: &Filter) -> Result<Vec<Listed>, sqlx::Error> {
    list!("status = 'failed'", filter).fetch_all(pool).await
}

pub(crate) async fn list_open(
    pool: &PgPool,
    filter: &Filter,
    status: Status,
) -> Result<Vec<Listed>, sqlx::Error> {
    list!("status in ('pending', 'running') and status = $5", filter, status.as_str()).fetch_all(pool).await
}

pub(crate) async fn list_closed(
    pool: &PgPool,
    filter: &Filter,
    status: Option<Status>,
) -> Result<Vec<Listed>, sqlx::Error> {
    list!("($5::text is null or status = $5)", filter, status.map(Status::as_str)).fetch_all(pool).await
}

pub(crate) async fn payload(pool: &PgPool, id: TaskId) -> Result<Option<Value>, sqlx::Error> {
    sqlx::query_scalar!("select payload from messaging.task where id = $1", id.as_uuid())
        .fetch_optional(pool)
        .await
}

pub(crate) async fn retry(pool: &PgPool, id: TaskId) -> Result<Verdict, sqlx::Error> {
    // The row is locked first, so that the answer is about the state that the update met.
    let met = sqlx::query_scalar!(
        r#"
        with met as (select id, status from messaging.task where id = $1 for update),
        retried as (
            update messaging.task t
            set status = 'pending', run_at = messaging.task_now(), attempts = 0, cancel_requested_at = null,
                updated_at = messaging.task_now()
            from met
            where t.id = met.id and met.status in ('failed', 'pending')
        )
        select status from met
        "#,
        id.as_uuid(),
    )
    .fetch_optional(pool)
    .await?;
    Ok(match met.map(Status::from) {
        None => Verdict::Unknown,
        Some(Status::Failed | Status::Pending) => Verdict::Retried,
        Some(status) => Verdict::Refused(status),
    })
}

pub(crate) async fn cancel(pool: &PgPool, id: TaskId) -> Result<Verdict, sqlx::Error> {
    let met = sqlx::query!(
        r#"
        with met as (
            select id, status,
                   status = 'running' and (cancel_requested_at is null or run_at > messaging.task_now()) as decides
            from messaging.task
            where id = $1
            for update
        ),
        changed as (
            update messaging.task t
            set status = case when met.decides then 'running' else 'cancelled' end,
                token = case when met.decides then t.token end,
                cancel_requested_at = coalesce(t.cancel_requested_at, messaging.task_now()),
                updated_at = messaging.task_now()
            from met
            where t.id = met.id and met.status in ('pending', 'running', 'failed')
        )
        select status, decides as "decides!" from met
        "#,
        id.as_uuid(),
    )
    .fetch_optional(pool)
    .await?;
    Ok(match met.map(|met| (Status::from(met.status), met.decides)) {
        None => Verdict::Unknown,
        Some((Status::Running, true)) => Verdict::Requested,
        Some((Status::Pending | Status::Running | Status::Failed, _)) => Verdict::Cancelled,
        Some((status, _)) => Verdict::Refused(status),
    })
}

/// Ids are nearly in order of creation, so what may be purged lies at the front of the primary key: an id that was made
/// after the end of the retention bounds the walk. No index is kept for it.
pub(crate) async fn purge(pool: &PgPool, retention: Duration, step: i64) -> Result<u64, sqlx::Error> {
    let done = sqlx::query!(
        "
        with cutoff as materialized (select messaging.task_now() - make_interval(secs => $1) as at),
        old as (
            select t.id
            from messaging.task t
            where t.id < (
                select (lpad(to_hex((extract(epoch from c.at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
                from cutoff c
            )
              and t.status in ('done', 'cancelled')
              and t.updated_at < (select c.at from cutoff c)
            order by t.id
            limit $2
            for update of t skip locked
        )
        delete from messaging.task t using old where t.id = old.id
        ",
        retention.as_secs_f64(),
        step,
    )
    .execute(pool)
    .await?;
    Ok(done.rows_affected())
}
