//! What became of a row: sent, dead, held behind a dead one, purged.

use std::time::Duration;

use super::super::row::RowId;
use super::{Error, Store, columns};

/// One step of a purge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Purged {
    /// Rows deleted.
    pub(crate) rows: i64,
    /// Where the next step goes on; `None` when younger rows or the end were reached.
    pub(crate) next: Option<i64>,
}

impl Store {
    /// Marks acknowledged rows as sent, by `(seq, id)`: after a failover a `seq` can belong to another row.
    /// Returns how many were unsent.
    ///
    /// # Errors
    /// What the database answers; then nobody knows, and repeating is harmless.
    pub(crate) async fn mark(&self, ids: &[RowId]) -> Result<u64, Error> {
        let (seqs, ids) = columns(ids);
        let mut session = self.lazy().await?;
        let done = sqlx::query!(
            "update messaging.outbox o set sent_at = messaging.now()
             from unnest($1::bigint[], $2::uuid[]) as acked (seq, id)
             where o.seq = acked.seq and o.id = acked.id and o.sent_at is null",
            &seqs,
            &ids,
        )
        .execute(&mut session)
        .await?;
        session.end().await?;
        Ok(done.rows_affected())
    }

    /// Deletes acknowledged rows instead of marking them (`retention = 0`).
    ///
    /// # Errors
    /// As [`Store::mark`].
    pub(crate) async fn delete(&self, ids: &[RowId]) -> Result<u64, Error> {
        let (seqs, ids) = columns(ids);
        let mut session = self.lazy().await?;
        let done = sqlx::query!(
            "delete from messaging.outbox o
             using unnest($1::bigint[], $2::uuid[]) as acked (seq, id)
             where o.seq = acked.seq and o.id = acked.id and o.sent_at is null",
            &seqs,
            &ids,
        )
        .execute(&mut session)
        .await?;
        session.end().await?;
        Ok(done.rows_affected())
    }

    /// Declares a row dead and, if it shall, blocks its key, in one statement, so that no later row of the key can
    /// slip past between the two. It failed twice: in company and alone.
    ///
    /// # Errors
    /// What the database answers.
    pub(crate) async fn bury(&self, id: RowId, error: &str, blocks: bool) -> Result<(), Error> {
        let mut session = self.main().await?;
        sqlx::query!(
            "with dead as (
                 update messaging.outbox
                 set dead_at = messaging.now(), attempts = attempts + 2, last_error = $3,
                     first_failed_at = coalesce(first_failed_at, messaging.now())
                 where seq = $1 and id = $2 and sent_at is null and dead_at is null
                 returning topic, aggregateid, seq, dead_at
             )
             insert into messaging.outbox_blocked (topic, key, seq, blocked_at)
             select topic, aggregateid, seq, dead_at from dead where $4
             on conflict on constraint outbox_blocked_pkey
             do update set seq = least(outbox_blocked.seq, excluded.seq)",
            id.seq,
            id.id,
            error,
            blocks,
        )
        .execute(&mut session)
        .await?;
        session.end().await
    }

    /// Takes rows behind a dead one out of the index of unsent rows.
    ///
    /// # Errors
    /// What the database answers.
    pub(crate) async fn hold(&self, ids: &[RowId]) -> Result<u64, Error> {
        let (seqs, ids) = columns(ids);
        let mut session = self.main().await?;
        // The share lock makes an operator who lets the key go wait, or makes this wait for him: a row put aside
        // after the key was let go would be forgotten for ever.
        let done = sqlx::query!(
            "with met as materialized (
                 select o.seq, o.topic, o.aggregateid
                 from unnest($1::bigint[], $2::uuid[]) as m (seq, id)
                 join messaging.outbox o on o.seq = m.seq and o.id = m.id
                 where o.sent_at is null and o.dead_at is null and o.held_at is null
             ),
             key as materialized (
                 select distinct topic, aggregateid from met
             ),
             blocked as materialized (
                 select b.topic, b.key, b.seq
                 from key join messaging.outbox_blocked b on b.topic = key.topic and b.key = key.aggregateid
                 for share of b
             )
             update messaging.outbox o set held_at = messaging.now()
             from met join blocked b on b.topic = met.topic and b.key = met.aggregateid and b.seq < met.seq
             where o.seq = met.seq and o.sent_at is null and o.dead_at is null and o.held_at is null",
            &seqs,
            &ids,
        )
        .execute(&mut session)
        .await?;
        session.end().await?;
        Ok(done.rows_affected())
    }

    /// Deletes rows that were sent longer than `retention` ago, among the next 1,000 above `after`. Unsent, dead
    /// and held rows have no `sent_at` and are never touched.
    ///
    /// # Errors
    /// What the database answers.
    pub(crate) async fn purge(&self, after: i64, retention: Duration) -> Result<Purged, Error> {
        let mut session = self.lazy().await?;
        let step = sqlx::query_file!("src/source/store/purge.sql", after, retention.as_secs_f64(),)
            .fetch_one(&mut session)
            .await?;
        session.end().await?;
        Ok(Purged { rows: step.rows, next: step.last.filter(|_| !step.young) })
    }
}
