//! What an attempt writes, each time with its token: 0 rows mean that the task is no longer its own. Only a running task
//! has a token, so its state need not be asked for, which would bring the index of open tasks into play.

use std::time::Duration;

use sqlx::{PgConnection, PgExecutor};
use uuid::Uuid;

use super::{Store, storable};
use crate::Status;

/// A task and the token of the attempt that holds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) id: Uuid,
    pub(crate) token: Uuid,
}

impl Store {
    /// Moves the end of the lease. `None`: lost; else whether a cancel was requested.
    pub(crate) async fn heartbeat(&self, held: Held, lease: Duration) -> Result<Option<bool>, sqlx::Error> {
        sqlx::query_scalar!(
            r#"
            update messaging.task
            set run_at = messaging.task_now() + make_interval(secs => $3), updated_at = messaging.task_now()
            where id = $1 and token = $2
            returning cancel_requested_at is not null as "requested!"
            "#,
            held.id,
            held.token,
            lease.as_secs_f64(),
        )
        .fetch_optional(&self.pool)
        .await
    }

    /// `None`: lost; else whether a cancel was requested.
    pub(crate) async fn cancel_requested(&self, held: Held) -> Result<Option<bool>, sqlx::Error> {
        sqlx::query_scalar!(
            r#"
            select cancel_requested_at is not null as "requested!"
            from messaging.task
            where id = $1 and token = $2
            "#,
            held.id,
            held.token,
        )
        .fetch_optional(&self.pool)
        .await
    }

    /// Ends the task.
    pub(crate) async fn finish(
        &self,
        held: Held,
        status: Status,
        error: Option<&str>,
    ) -> Result<bool, sqlx::Error> {
        finish(&self.pool, held, status, error).await
    }

    /// Gives the task back for another attempt.
    pub(crate) async fn postpone(
        &self,
        held: Held,
        delay: Duration,
        error: &str,
    ) -> Result<bool, sqlx::Error> {
        let done = sqlx::query!(
            "
            update messaging.task
            set status = 'pending', token = null, run_at = messaging.task_now() + make_interval(secs => $3),
                last_error = $4, updated_at = messaging.task_now()
            where id = $1 and token = $2
            ",
            held.id,
            held.token,
            delay.as_secs_f64(),
            storable(error),
        )
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Gives the task back as if it had not been tried.
    pub(crate) async fn release(&self, held: Held) -> Result<bool, sqlx::Error> {
        let done = sqlx::query!(
            "
            update messaging.task
            set status = 'pending', token = null, run_at = messaging.task_now(), attempts = attempts - 1,
                updated_at = messaging.task_now()
            where id = $1 and token = $2
            ",
            held.id,
            held.token,
        )
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected() == 1)
    }
}

/// Ends the task in any transaction.
pub(crate) async fn finish(
    db: impl PgExecutor<'_>,
    held: Held,
    status: Status,
    error: Option<&str>,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "
        update messaging.task
        set status = $3, token = null, last_error = coalesce($4, last_error), updated_at = messaging.task_now()
        where id = $1 and token = $2
        ",
        held.id,
        held.token,
        status.as_str(),
        error.map(storable),
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Holds the task until the end of the transaction, if it is still the attempt's.
pub(crate) async fn hold(tx: &mut PgConnection, held: Held) -> Result<bool, sqlx::Error> {
    let row = sqlx::query!(
        r#"select 1 as "held!" from messaging.task where id = $1 and token = $2 for no key update"#,
        held.id,
        held.token,
    )
    .fetch_optional(tx)
    .await?;
    Ok(row.is_some())
}
