//! What the metrics and `relay status` show. Every query is bounded.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{Error, Store};

/// Counting stops here.
const MOST: i64 = 10_000;

/// State of some buckets, for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// Age of the oldest unsent row, seconds.
    pub oldest: f64,
    /// Unsent rows, at most 10,000.
    pub unsent: i64,
    /// Keys behind a dead row.
    pub blocked: i64,
    /// Dead rows.
    pub dead: i64,
}

/// State of a whole database, for `relay status`.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Age of the oldest unsent row, seconds.
    pub oldest_unsent_seconds: Option<f64>,
    /// Unsent rows by topic; counting stops at 10,000 rows.
    pub unsent: Vec<Unsent>,
    /// Buckets by owner.
    pub leases: Vec<Owned>,
    /// Keys behind a dead row, oldest first, at most 100.
    pub blocked: Vec<Blocked>,
    /// Dead rows, oldest first, at most 100.
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
    /// When it was declared dead.
    pub dead_at: Option<DateTime<Utc>>,
    /// Attempts made.
    pub attempts: i32,
    /// The broker's last word.
    pub error: Option<String>,
}

impl Store {
    /// Samples buckets.
    ///
    /// # Errors
    /// What the database answers.
    pub async fn sample(&self, buckets: &[i16]) -> Result<Sample, Error> {
        // The first unsent row of each bucket: a few index probes, whatever the backlog. Pairs as in fetch.sql.
        let sample = sqlx::query!(
            r#"
            select
                coalesce((
                    select max(extract(epoch from clock_timestamp() - first.created_at))::float8
                    from unnest($1::smallint[]) as mine (bucket)
                    cross join lateral (
                        select o.created_at from messaging.outbox o
                        where (o.bucket, o.seq) > (mine.bucket, 0) and (o.bucket, o.seq) < (mine.bucket + 1, 0)
                            and o.sent_at is null and o.dead_at is null and o.held_at is null
                        order by o.bucket, o.seq limit 1
                    ) first
                ), 0) as "oldest!",
                (select count(*) from (
                    select from unnest($1::smallint[]) as mine (bucket)
                    cross join lateral (
                        select from messaging.outbox o
                        where (o.bucket, o.seq) > (mine.bucket, 0) and (o.bucket, o.seq) < (mine.bucket + 1, 0)
                            and o.sent_at is null and o.dead_at is null and o.held_at is null
                        limit $2
                    ) o
                    limit $2
                ) unsent) as "unsent!",
                (select count(*) from messaging.outbox_blocked b
                    where messaging.bucket(b.key) = any ($1)) as "blocked!",
                (select count(*) from messaging.outbox_blocked b
                    join messaging.outbox o on o.seq = b.seq and o.dead_at is not null
                    where messaging.bucket(b.key) = any ($1)) as "dead!"
            "#,
            buckets,
            MOST,
        )
        .fetch_one(&self.main)
        .await?;
        Ok(Sample {
            oldest: sample.oldest.max(0.0),
            unsent: sample.unsent,
            blocked: sample.blocked,
            dead: sample.dead,
        })
    }

    /// Surveys the whole outbox.
    ///
    /// # Errors
    /// What the database answers.
    pub async fn status(&self) -> Result<Status, Error> {
        let all: Vec<i16> = (0..waybill_outbox::BUCKETS).collect();
        let sample = self.sample(&all).await?;
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
        .fetch_all(&self.main)
        .await?;
        let leases = sqlx::query_as!(
            Owned,
            r#"select case when expires_at > messaging.now() then owner end as owner, count(*) as "buckets!"
               from messaging.relay_lease group by 1 order by 1"#
        )
        .fetch_all(&self.main)
        .await?;
        let blocked = sqlx::query_as!(
            Blocked,
            "select topic, key, seq, blocked_at as since from messaging.outbox_blocked order by blocked_at limit 100"
        )
        .fetch_all(&self.main)
        .await?;
        let dead = sqlx::query_as!(
            Dead,
            r#"select o.seq, o.id, o.topic, o.aggregateid as key, o.type, o.dead_at, o.attempts, o.last_error as error
               from messaging.outbox_blocked b join messaging.outbox o on o.seq = b.seq
               where o.dead_at is not null
               order by o.seq limit 100"#
        )
        .fetch_all(&self.main)
        .await?;
        Ok(Status {
            oldest_unsent_seconds: (sample.unsent > 0).then_some(sample.oldest),
            unsent,
            leases,
            blocked,
            dead,
        })
    }
}
