//! What an operator decides about dead rows.
//!
//! Safe while relays run. A key's entry in `outbox_blocked` is locked first; relays that put rows aside behind it
//! lock it too. What comes back among the unsent rows comes back in one transaction that also counts up the bucket's
//! `relay_requeue`: a relay sees the dead row, its followers and the new count in one snapshot or none of them, so
//! it reads the bucket from its very start and sends the dead row first.

use uuid::Uuid;

use super::session::Session;
use super::status::Dead;
use super::survey::MOST;
use super::{Error, Store};

/// Which dead rows.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// These; empty: all.
    pub seqs: Vec<i64>,
    /// These too.
    pub ids: Vec<Uuid>,
    /// Of this key.
    pub key: Option<String>,
    /// Of this topic, with its prefix.
    pub topic: Option<String>,
}

/// What is done with a dead row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It is sent again, then its followers.
    Retry,
    /// It is given up: kept, never sent; its followers go on.
    Skip,
}

/// What became of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Done; so many held rows were let go.
    Done {
        /// Rows that were held behind it.
        released: u64,
    },
    /// The row is not dead any more: somebody else decided meanwhile.
    Gone,
}

impl Store {
    /// Dead rows that wait for an operator, in `seq` order above `after`.
    ///
    /// # Errors
    /// What the database answers.
    pub async fn dead(&self, which: &Selection, after: i64, most: i64) -> Result<Vec<Dead>, Error> {
        let mut session = self.main().await?;
        // `+ 0`: by the small index of dead rows and a sort, not by the primary key through millions of sent ones.
        let dead = sqlx::query_as!(
            Dead,
            r#"select
                   o.seq, o.id, o.topic, o.aggregateid as key, o.type, o.created_at, o.dead_at, o.attempts,
                   o.last_error as error, o.bucket,
                   exists (
                       select from messaging.outbox_blocked b where b.topic = o.topic and b.key = o.aggregateid
                   ) as "blocks!",
                   (select count(*) from (
                       select from messaging.outbox h
                       where h.topic = o.topic and h.aggregateid = o.aggregateid and h.held_at is not null
                           and h.seq > o.seq
                       limit $7
                   ) held) as "held!"
               from messaging.outbox o
               where o.dead_at is not null and o.skipped_at is null
                   and (cardinality($1::bigint[]) + cardinality($2::uuid[]) = 0
                       or o.seq = any ($1) or o.id = any ($2))
                   and ($3::text is null or o.aggregateid = $3)
                   and ($4::text is null or o.topic = $4)
                   and o.seq > $5
               order by o.seq + 0
               limit $6"#,
            &which.seqs,
            &which.ids,
            which.key,
            which.topic,
            after,
            most,
            MOST,
        )
        .fetch_all(&mut session)
        .await?;
        session.end().await?;
        Ok(dead)
    }

    /// Carries out a decision about one row.
    ///
    /// # Errors
    /// What the database answers; then nothing was done.
    pub async fn decide(&self, row: &Dead, decision: Decision) -> Result<Outcome, Error> {
        let mut tx = self.transaction().await?;
        // A key may have very many followers, and they must come back together.
        sqlx::raw_sql("set local statement_timeout = '10min'").execute(&mut tx).await?;
        let blocker = sqlx::query_scalar!(
            "select seq from messaging.outbox_blocked where topic = $1 and key = $2 for update",
            row.topic,
            row.key,
        )
        .fetch_optional(&mut tx)
        .await?;
        if !take(&mut tx, row, decision).await? {
            return Ok(Outcome::Gone);
        }
        // Another dead row of the key, below this one, may be what blocks it.
        let released = match blocker {
            Some(seq) if seq != row.seq => 0,
            blocker => release(&mut tx, row, blocker.is_some()).await?,
        };
        if released > 0 || decision == Decision::Retry {
            sqlx::query!(
                "update messaging.relay_requeue set times = times + 1 where bucket = $1",
                row.bucket
            )
            .execute(&mut tx)
            .await?;
        }
        tx.end().await?;
        Ok(Outcome::Done { released })
    }
}

/// Whether the row was still dead.
async fn take(tx: &mut Session, row: &Dead, decision: Decision) -> Result<bool, Error> {
    let done = sqlx::query!(
        "update messaging.outbox
         set dead_at = case when $3 then null else dead_at end,
             skipped_at = case when $3 then null else messaging.now() end
         where seq = $1 and id = $2 and dead_at is not null and skipped_at is null",
        row.seq,
        row.id,
        decision == Decision::Retry,
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Lets the key's rows go, up to its next dead row if the key blocks.
async fn release(tx: &mut Session, row: &Dead, blocks: bool) -> Result<u64, Error> {
    let next = if blocks {
        sqlx::query_scalar!(
            "select min(seq) from messaging.outbox
             where topic = $1 and aggregateid = $2 and dead_at is not null and skipped_at is null and seq > $3",
            row.topic,
            row.key,
            row.seq,
        )
        .fetch_one(&mut *tx)
        .await?
    } else {
        None
    };
    sqlx::query!(
        "with moved as (
             update messaging.outbox_blocked set seq = $3 where topic = $1 and key = $2 and $3::bigint is not null
         )
         delete from messaging.outbox_blocked where topic = $1 and key = $2 and $3::bigint is null",
        row.topic,
        row.key,
        next,
    )
    .execute(&mut *tx)
    .await?;
    let released = sqlx::query!(
        "update messaging.outbox set held_at = null
         where topic = $1 and aggregateid = $2 and held_at is not null and ($3::bigint is null or seq < $3)",
        row.topic,
        row.key,
        next,
    )
    .execute(&mut *tx)
    .await?;
    Ok(released.rows_affected())
}
