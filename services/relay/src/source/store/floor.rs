//! What a floor is proven by.

use super::super::cursor::Raise;
use super::{Error, Still, Store};

/// Unsent rows below a floor that are counted in one look.
const MOST: i64 = 1_000;
/// Rows of paused and standing topics that one bucket passes over in one look.
const OVER_STILL: i64 = 5_000;

/// The highest `seq` drawn so far, and a transaction that began after it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ceiling {
    /// The sequence's last value.
    pub(crate) seq: i64,
    /// Transaction id.
    pub(crate) xid: i64,
}

/// The lowest unsent rows, in one snapshot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lowest {
    /// Every transaction below it has ended, as the snapshot sees it.
    pub(crate) xmin: i64,
    /// By bucket: where its floor may be raised to at most, apart from the ceiling.
    pub(crate) buckets: Vec<Raise>,
    /// A look ended before it found a row: the next one goes on from there.
    pub(crate) cut: bool,
}

impl Store {
    /// Reads the sequence, and *after* it takes a transaction id in a transaction of its own.
    ///
    /// # Errors
    /// What the database answers.
    pub(crate) async fn ceiling(&self) -> Result<Ceiling, Error> {
        // Rule: in this order, and with an id of one's own. The snapshot's xmax is the latest *completed* id + 1:
        // running transactions can lie above it. The id before the sequence: a transaction between the two would
        // be missed. A writer has its id before it draws a seq, so whoever drew one up to `seq` has a lower id.
        let mut session = self.lazy().await?;
        let seq = sqlx::query_scalar!(
            "select pg_sequence_last_value(pg_get_serial_sequence('messaging.outbox', 'seq')::regclass)"
        )
        .fetch_one(&mut session)
        .await?;
        session.end().await?;
        let mut session = self.lazy().await?;
        let xid = sqlx::query_scalar!(r#"select pg_current_xact_id()::text::bigint as "xid!""#)
            .fetch_one(&mut session)
            .await?;
        session.end().await?;
        Ok(Ceiling { seq: seq.unwrap_or(0), xid })
    }

    /// The lowest unsent row above each bucket's floor, without what stands still.
    ///
    /// # Errors
    /// What the database answers.
    pub(crate) async fn lowest(&self, floors: &[(i16, i64)], still: &Still) -> Result<Lowest, Error> {
        let (buckets, floors): (Vec<i16>, Vec<i64>) = floors.iter().copied().unzip();
        let (paused, standing) = still.columns();
        let over = if still.is_empty() { 1 } else { OVER_STILL };
        let mut session = self.main().await?;
        let records = sqlx::query_file!(
            "src/source/store/lowest.sql",
            &buckets,
            &floors,
            &paused as &[&str],
            over,
            &standing,
        )
        .fetch_all(&mut session)
        .await?;
        session.end().await?;
        let mut lowest = Lowest::default();
        for record in records {
            lowest.xmin = record.xmin;
            let cut = record.lowest.is_none() && record.read >= over;
            lowest.cut |= cut;
            let most = record.lowest.map(|seq| seq - 1).or(record.passed.filter(|_| cut));
            lowest.buckets.push(Raise { bucket: record.bucket, era: record.era, most });
        }
        Ok(lowest)
    }

    /// Unsent rows up to each bucket's floor, without what stands still: bucket, era, number.
    ///
    /// # Errors
    /// What the database answers.
    pub(crate) async fn below(
        &self,
        floors: &[(i16, i64)],
        still: &Still,
    ) -> Result<Vec<(i16, i64, i64)>, Error> {
        let (buckets, floors): (Vec<i16>, Vec<i64>) = floors.iter().copied().unzip();
        let (paused, standing) = still.columns();
        let mut session = self.main().await?;
        let records = sqlx::query_file!(
            "src/source/store/below.sql",
            &buckets,
            &floors,
            &paused as &[&str],
            MOST,
            &standing,
        )
        .fetch_all(&mut session)
        .await?;
        session.end().await?;
        Ok(records.into_iter().map(|r| (r.bucket, r.era, r.unsent)).collect())
    }
}
