//! All SQL of the inbox.
//!
//! Rows are looked up one by one, by a subquery that the planner cannot turn into a join. With `message_id = any($1)`, a
//! join or `not exists`, a plan that is made for a young table, which was never vacuumed, reads the rows of the whole group
//! by the first column of the index, and is kept until the table is analyzed: a minute or more of load. Of a table that
//! was vacuumed while it was nearly empty, a plan reads everything still.

use chrono::{DateTime, Utc};
use sqlx::{
    Connection, PgConnection, PgExecutor, PgPool, PgTransaction, Postgres, pool::PoolConnection,
    postgres::types::PgInterval,
};
use uuid::Uuid;

use crate::settings::Settings;

#[cfg(test)]
mod tests;

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

/// A message that asks for its inbox row.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    pub(crate) id: Uuid,
    /// Time of the id; `None` for one without a time, and for a replay.
    pub(crate) made: Option<DateTime<Utc>>,
}

/// Claims the ids for this transaction. Returns those that no committed row stood against, with `true` for a message
/// that is older than `stale_after` and so was not claimed. The database's clock decides, because its rows are purged
/// by it: a process whose clock is wrong must not take every message for stale.
///
/// Sorted, so that two consumers with overlapping batches wait for each other in one direction only.
pub(crate) async fn claim(
    tx: &mut PgConnection,
    group: &str,
    mut candidates: Vec<Candidate>,
    stale_after: PgInterval,
) -> Result<Vec<(Uuid, bool)>, sqlx::Error> {
    candidates.sort_unstable();
    let (ids, made): (Vec<_>, Vec<_>) = candidates.into_iter().map(|given| (given.id, given.made)).unzip();
    let rows = sqlx::query!(
        r#"with clock as materialized (
             select messaging.now() - $4::interval as oldest
         ), given as (
             select g.id, coalesce(g.made < clock.oldest, false) as stale
             from unnest($2::uuid[], $3::timestamptz[]) as g(id, made), clock
         ), claimed as (
             insert into messaging.processed_message (consumer_group, message_id, processed_at, outcome)
             select $1, id, messaging.now(), 'done' from given where not stale
             on conflict do nothing
             returning message_id
         )
         select message_id as "id!", false as "stale!" from claimed
         union all
         select g.id, true from given g where g.stale and (
             select true from messaging.processed_message p
             where p.consumer_group = $1 and p.message_id = g.id) is null"#,
        group,
        &ids,
        &made as &[Option<DateTime<Utc>>],
        stale_after,
    )
    .fetch_all(tx)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.stale)).collect())
}

/// Takes back the claim of messages whose effect is not in this transaction, whose own rows nobody else can move.
pub(crate) async fn unclaim(tx: &mut PgConnection, group: &str, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "delete from messaging.processed_message where ctid = any (array(
             select (select p.ctid from messaging.processed_message p
                     where p.consumer_group = $1 and p.message_id = given.id)
             from unnest($2::uuid[]) as given(id)))",
        group,
        ids,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// What the inbox says to a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplayClaim {
    /// Nothing was done yet. The row is `done` now, by this replay, and locked until the transaction ends.
    Granted,
    /// Done by this very replay: the record was delivered again.
    Resolved,
    /// Done without this replay.
    AlreadyProcessed,
}

/// Claims a replayed message for this transaction. Without a row, which a crash between dead letter and `dead` row or
/// the purge leaves behind, it is claimed as any message is.
pub(crate) async fn claim_replay(
    tx: &mut PgConnection,
    group: &str,
    message: Uuid,
    replay: Uuid,
) -> Result<ReplayClaim, sqlx::Error> {
    let granted = sqlx::query_scalar!(
        r#"insert into messaging.processed_message as p
             (consumer_group, message_id, processed_at, outcome, replay_id)
           values ($1, $2, messaging.now(), 'done', $3)
           on conflict (consumer_group, message_id) do update
           set outcome = 'done', replay_id = excluded.replay_id, processed_at = excluded.processed_at
           where p.outcome = 'dead'
           returning true as "granted!""#,
        group,
        message,
        replay,
    )
    .fetch_optional(&mut *tx)
    .await?;
    if granted.is_some() {
        return Ok(ReplayClaim::Granted);
    }
    // A conflict waits for the other transaction, so its row is committed; a new statement sees it.
    let by = sqlx::query_scalar!(
        "select replay_id from messaging.processed_message where consumer_group = $1 and message_id = $2",
        group,
        message,
    )
    .fetch_one(tx)
    .await?;
    Ok(if by == Some(replay) { ReplayClaim::Resolved } else { ReplayClaim::AlreadyProcessed })
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
pub(crate) async fn already_dead(
    database: impl PgExecutor<'_>,
    group: &str,
    ids: &[Uuid],
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"select given.id as "id!" from unnest($2::uuid[]) as given(id) where 'dead' = (
             select p.outcome from messaging.processed_message p
             where p.consumer_group = $1 and p.message_id = given.id)"#,
        group,
        ids,
    )
    .fetch_all(database)
    .await
}

/// A row of the inbox.
pub(crate) struct State {
    pub(crate) message_id: Uuid,
    pub(crate) outcome: String,
    pub(crate) replay_id: Option<Uuid>,
}

/// The rows of some messages.
pub(crate) async fn states(
    database: impl PgExecutor<'_>,
    group: &str,
    ids: &[Uuid],
) -> Result<Vec<State>, sqlx::Error> {
    sqlx::query_as!(
        State,
        r#"select p.message_id, p.outcome, p.replay_id from unnest($2::uuid[]) as given(id)
         cross join lateral (
             select message_id, outcome, replay_id from messaging.processed_message
             where consumer_group = $1 and message_id = given.id limit 1) p"#,
        group,
        ids,
    )
    .fetch_all(database)
    .await
}

/// Marks messages whose dead letter is acknowledged. A row that is there already says as much or more.
pub(crate) async fn mark_dead(
    database: impl PgExecutor<'_>,
    group: &str,
    mut ids: Vec<Uuid>,
) -> Result<(), sqlx::Error> {
    ids.sort_unstable();
    sqlx::query!(
        "insert into messaging.processed_message (consumer_group, message_id, processed_at, outcome)
         select $1, id, messaging.now(), 'dead' from unnest($2::uuid[]) as id
         on conflict do nothing",
        group,
        &ids,
    )
    .execute(database)
    .await?;
    Ok(())
}

/// Deletes what is older than its horizon, at most `most` rows. Rows that another transaction holds are left for the
/// next step.
pub(crate) async fn purge(
    pool: &PgPool,
    done: PgInterval,
    dead: PgInterval,
    most: i64,
) -> Result<u64, sqlx::Error> {
    let purged = sqlx::query!(
        "with clock as materialized (
             select messaging.now() - $1::interval as done_before, messaging.now() - $2::interval as dead_before
         ), old as materialized (
             select p.consumer_group, p.message_id from messaging.processed_message p, clock
             -- A replayed message is `done` and was `dead`: its dead letter can be replayed once more.
             where p.processed_at < clock.done_before and p.outcome = 'done' and p.replay_id is null
                or p.processed_at < clock.dead_before
             limit $3
             for update of p skip locked
         )
         delete from messaging.processed_message p using old
         where p.consumer_group = old.consumer_group and p.message_id = old.message_id",
        done,
        dead,
        most,
    )
    .execute(pool)
    .await?;
    Ok(purged.rows_affected())
}
