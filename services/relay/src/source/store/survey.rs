//! What the metrics show. Every part is bounded, whatever the backlog.

use super::{Error, Store};

/// Counting stops here.
pub(super) const MOST: i64 = 10_000;

/// State of some buckets, for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// Age of the oldest unsent row, seconds.
    pub oldest: f64,
    /// Unsent rows, at most 10,000.
    pub unsent: i64,
    /// Keys behind a dead row, at most 10,000.
    pub blocked: i64,
    /// Dead rows that wait for an operator, at most 10,000.
    pub dead: i64,
    /// Rows held behind dead ones, at most 10,000.
    pub held: i64,
    /// Age of the oldest row behind a dead one, seconds.
    pub oldest_held: f64,
}

impl Store {
    /// Samples buckets.
    ///
    /// # Errors
    /// What the database answers.
    pub async fn sample(&self, buckets: &[i16]) -> Result<Sample, Error> {
        let mut session = self.main().await?;
        let sample =
            sqlx::query_file!("src/source/store/sample.sql", buckets, MOST,).fetch_one(&mut session).await?;
        session.end().await?;
        Ok(Sample {
            oldest: sample.oldest.max(0.0),
            unsent: sample.unsent,
            blocked: sample.blocked,
            dead: sample.dead,
            held: sample.held,
            oldest_held: sample.oldest_held.max(0.0),
        })
    }
}
