//! All SQL of the inbox.

use sqlx::{Connection, PgConnection, PgPool, PgTransaction, Postgres, pool::PoolConnection};
use uuid::Uuid;

use crate::settings::Settings;

/// A pooled connection that is closed, not reused, unless [`release`](Self::release) says that it is clean.
///
/// That covers a cancelled `begin` (sqlx would hand the next user a connection inside an open transaction), a
/// cancelled or panicked handler, and a commit whose answer never came.
pub(crate) struct Lease(Option<PoolConnection<Postgres>>);

impl Lease {
    pub(crate) async fn acquire(pool: &PgPool) -> Result<Self, sqlx::Error> {
        Ok(Self(Some(pool.acquire().await?)))
    }

    /// Begins with time limits for the whole transaction, in one round trip.
    pub(crate) async fn begin(&mut self, settings: &Settings) -> Result<PgTransaction<'_>, sqlx::Error> {
        let (lock, idle) = (settings.lock_timeout.as_millis(), settings.idle_in_transaction.as_millis());
        let begin = format!(
            "begin isolation level read committed; set local lock_timeout = {lock}; \
             set local idle_in_transaction_session_timeout = {idle}"
        );
        let connection = self.0.as_mut().ok_or(sqlx::Error::PoolClosed)?;
        Connection::begin_with(&mut **connection, sqlx::AssertSqlSafe(begin)).await
    }

    pub(crate) fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

/// Claims the ids for this transaction; returns those that no committed row stood against.
///
/// Sorted, so that two consumers with overlapping batches wait for each other in one direction only.
pub(crate) async fn claim(
    tx: &mut PgConnection,
    group: &str,
    mut ids: Vec<Uuid>,
) -> Result<Vec<Uuid>, sqlx::Error> {
    ids.sort_unstable();
    sqlx::query_scalar!(
        "insert into messaging.processed_message (consumer_group, message_id, outcome)
         select $1, id, 'done' from unnest($2::uuid[]) as id
         on conflict do nothing
         returning message_id",
        group,
        &ids,
    )
    .fetch_all(tx)
    .await
}

/// Takes back the claim of messages whose effect is not in this transaction.
pub(crate) async fn unclaim(tx: &mut PgConnection, group: &str, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "delete from messaging.processed_message where consumer_group = $1 and message_id = any($2)",
        group,
        ids,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Opens the first savepoint.
pub(crate) async fn savepoint(tx: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("savepoint message").execute(tx).await.map(drop)
}

/// Keeps what was written since the savepoint and opens the next one, in one round trip.
pub(crate) async fn next_savepoint(tx: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("release savepoint message; savepoint message").execute(tx).await.map(drop)
}

/// Undoes what was written since the savepoint, which stays open.
pub(crate) async fn undo(tx: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("rollback to savepoint message").execute(tx).await.map(drop)
}

/// Runs deferred constraints now, while an error can still be told from a lost commit. It also fails in a transaction
/// that the server has aborted behind a swallowed error: there `commit` would roll back and report success.
pub(crate) async fn settle(tx: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("set constraints all immediate").execute(tx).await.map(drop)
}

/// Which of these ids were dead-lettered before.
pub(crate) async fn already_dead(pool: &PgPool, group: &str, ids: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        "select message_id from messaging.processed_message
         where consumer_group = $1 and message_id = any($2) and outcome = 'dead'",
        group,
        ids,
    )
    .fetch_all(pool)
    .await
}

/// Marks messages whose dead letter is acknowledged. A row that is there already says as much or more.
pub(crate) async fn mark_dead(pool: &PgPool, group: &str, mut ids: Vec<Uuid>) -> Result<(), sqlx::Error> {
    ids.sort_unstable();
    sqlx::query!(
        "insert into messaging.processed_message (consumer_group, message_id, outcome)
         select $1, id, 'dead' from unnest($2::uuid[]) as id
         on conflict do nothing",
        group,
        &ids,
    )
    .execute(pool)
    .await?;
    Ok(())
}
