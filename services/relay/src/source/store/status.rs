//! What `relay status` shows. Every query is bounded.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::operate::Selection;
use super::survey::MOST;
use super::{Error, Store};

/// State of a whole database, for `relay status`.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Age of the oldest unsent row, seconds.
    pub oldest_unsent_seconds: Option<f64>,
    /// Unsent rows by topic; counting stops at 10,000 rows.
    pub unsent: Vec<Unsent>,
    /// Buckets by owner.
    pub leases: Vec<Owned>,
    /// Rows held behind dead ones; counting stops at 10,000.
    pub held: i64,
    /// Age of the oldest held row, seconds.
    pub oldest_held_seconds: Option<f64>,
    /// Keys behind a dead row, oldest first, at most 100.
    pub blocked: Vec<Blocked>,
    /// Dead rows that wait for an operator; counting stops at 10,000.
    pub dead_rows: i64,
    /// The first of them, at most 100.
    pub dead: Vec<Dead>,
}

/// Unsent rows of a topic.
#[derive(Debug, Clone, Serialize)]
pub struct Unsent {
    /// Topic with its prefix.
    pub topic: String,
    /// Their number.
    pub rows: i64,
}

/// Buckets of one owner.
#[derive(Debug, Clone, Serialize)]
pub struct Owned {
    /// Instance; `None`: free, or the lease is over.
    pub owner: Option<String>,
    /// Their number.
    pub buckets: i64,
}

/// A key behind a dead row.
#[derive(Debug, Clone, Serialize)]
pub struct Blocked {
    /// Topic with its prefix.
    pub topic: String,
    /// Key.
    pub key: String,
    /// The dead row.
    pub seq: i64,
    /// Since when.
    pub since: DateTime<Utc>,
    /// Rows held behind it; counting stops at 10,000.
    pub held: i64,
}

/// A dead row.
#[derive(Debug, Clone, Serialize)]
pub struct Dead {
    /// Its place in the order.
    pub seq: i64,
    /// Message id.
    pub id: uuid::Uuid,
    /// Topic with its prefix.
    pub topic: String,
    /// Key.
    pub key: String,
    /// `ce_type`.
    pub r#type: String,
    /// When it was written.
    pub created_at: DateTime<Utc>,
    /// When it was declared dead.
    pub dead_at: Option<DateTime<Utc>>,
    /// Attempts made.
    pub attempts: i32,
    /// The broker's last word.
    pub error: Option<String>,
    /// Bucket of its key.
    pub bucket: i16,
    /// Its key waits for it (policy `block`).
    pub blocks: bool,
    /// Rows held behind it; counting stops at 10,000.
    pub held: i64,
}

impl Store {
    /// Surveys the whole outbox.
    ///
    /// # Errors
    /// What the database answers.
    pub async fn status(&self) -> Result<Status, Error> {
        let all: Vec<i16> = (0..waybill_outbox::BUCKETS).collect();
        let sample = self.sample(&all).await?;
        let mut session = self.main().await?;
        let unsent = sqlx::query_as!(
            Unsent,
            r#"select unsent.topic, count(*) as "rows!" from (
                   select o.topic from messaging.outbox o
                   where (o.bucket, o.seq) > (0::smallint, 0::bigint)
                       and o.sent_at is null and o.dead_at is null and o.held_at is null
                   order by o.bucket, o.seq
                   limit $1
               ) unsent group by unsent.topic order by unsent.topic"#,
            MOST,
        )
        .fetch_all(&mut session)
        .await?;
        let leases = sqlx::query_as!(
            Owned,
            r#"select case when expires_at > messaging.now() then owner end as owner, count(*) as "buckets!"
               from messaging.relay_lease group by 1 order by 1"#
        )
        .fetch_all(&mut session)
        .await?;
        let blocked = sqlx::query_as!(
            Blocked,
            r#"select b.topic, b.key, b.seq, b.blocked_at as since,
                   (select count(*) from (
                       select from messaging.outbox o
                       where o.topic = b.topic and o.aggregateid = b.key and o.held_at is not null
                       limit $1
                   ) held) as "held!"
               from messaging.outbox_blocked b order by b.blocked_at limit 100"#,
            MOST,
        )
        .fetch_all(&mut session)
        .await?;
        session.end().await?;
        Ok(Status {
            oldest_unsent_seconds: (sample.unsent > 0).then_some(sample.oldest),
            unsent,
            leases,
            held: sample.held,
            oldest_held_seconds: (sample.held > 0).then_some(sample.oldest_held),
            blocked,
            dead_rows: sample.dead,
            dead: self.dead(&Selection::default(), 0, 100).await?,
        })
    }
}
