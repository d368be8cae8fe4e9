//! All SQL of tasks.
//!
//! The worker's own statements have a pool of their own, so that handlers which hold every connection cannot keep
//! heartbeats from being written.

mod attempt;
mod claim;
mod operate;

use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool};
use uuid::Uuid;

pub(crate) use self::attempt::{Held, finish, hold};
pub(crate) use self::claim::{Claimed, Cursor, Kinds};
pub(crate) use self::operate::{cancel, list_closed, list_failed, list_open, payload, purge, retry};
use crate::metrics::{COUNTED, Seen};
use crate::{New, TaskId};

/// A connection idle for less is handed out without a ping.
const FRESH: Duration = Duration::from_secs(1);
const ACQUIRE: Duration = Duration::from_secs(3);
/// Claims, heartbeats, ends of attempts and samples; none of them is long.
const CONNECTIONS: u32 = 4;
/// Bytes of an error that are kept.
const ERROR_BYTES: usize = 1_024;

/// Settings of every session of the worker.
///
/// Its statements go by an index, whatever the statistics say: between a backlog and an empty queue they are always
/// wrong (the relay's sessions are set so for the same reason).
const SESSION: [(&str, &str); 9] = [
    ("statement_timeout", "5s"),
    ("lock_timeout", "2s"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    // Else a look for the first of a key may read and sort all open tasks when few are expected.
    ("enable_sort", "off"),
    // A penalty on sequential scans would else make every cost high enough to be compiled.
    ("jit", "off"),
];

/// The worker's own way to the database. Cheap to clone; connects when first used.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pool: PgPool,
}

impl Store {
    pub(crate) fn new(pool: &PgPool) -> Self {
        Self::with_connections(pool, CONNECTIONS)
    }

    pub(crate) fn with_connections(pool: &PgPool, most: u32) -> Self {
        let options = (*pool.connect_options()).clone().disable_statement_logging().options(SESSION);
        let own = PgPoolOptions::new().max_connections(most).acquire_timeout(ACQUIRE);
        let own = own.test_before_acquire(false).before_acquire(|connection, known| {
            Box::pin(async move {
                if known.idle_for >= FRESH {
                    connection.ping().await?;
                }
                Ok(true)
            })
        });
        Self { pool: own.connect_lazy_with(options) }
    }

    pub(crate) fn into_pool(self) -> PgPool {
        self.pool
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }

    /// Counts open and failed tasks by kind, up to a bound, and says how late the oldest of each kind is. Those that are
    /// due the longest come first, so that no backlog hides what nobody takes.
    pub(crate) async fn sample(&self) -> Result<Vec<Seen>, sqlx::Error> {
        sqlx::query_as!(
            Seen,
            r#"
            select kind as "kind!", status as "status!: String", count(*) as "count!",
                   coalesce(extract(epoch from messaging.task_now() - min(run_at))::float8, 0) as "due_for!"
            from (
                (select kind, status, run_at from messaging.task where status in ('pending', 'running')
                 order by run_at, seq limit $1)
                union all
                (select kind, status, null from messaging.task where status = 'failed' limit $1)
            ) t
            group by kind, status
            "#,
            COUNTED,
        )
        .fetch_all(&self.pool)
        .await
    }
}

/// One statement; the sorted subquery draws `seq` in the order given.
pub(crate) async fn enqueue(tx: &mut PgConnection, ids: &[TaskId], new: &[New]) -> Result<(), sqlx::Error> {
    fn column<'a, T>(new: &'a [New], of: impl Fn(&'a New) -> T) -> Vec<T> {
        new.iter().map(of).collect()
    }
    let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    sqlx::query!(
        "
        insert into messaging.task (id, kind, key, payload, run_at, traceparent, tracestate)
        select id, kind, key, payload, coalesce(run_at, messaging.task_now()), traceparent, tracestate
        from (
            select id, kind, key, payload, run_at, traceparent, tracestate
            from unnest($1::uuid[], $2::text[], $3::text[], $4::jsonb[], $5::timestamptz[], $6::text[], $7::text[])
                with ordinality as u (id, kind, key, payload, run_at, traceparent, tracestate, place)
            order by place
        ) t
        ",
        &ids,
        &column(new, |n| n.kind.as_str()) as &[&str],
        &column(new, |n| n.key.as_deref()) as &[Option<&str>],
        &column(new, |n| n.payload.clone()),
        &column(new, |n| n.run_at) as &[Option<chrono::DateTime<chrono::Utc>>],
        &column(new, |n| n.trace.as_ref().map(|t| t.traceparent.as_str())) as &[Option<&str>],
        &column(new, |n| n.trace.as_ref().and_then(|t| t.tracestate.as_deref())) as &[Option<&str>],
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// An error's text as it can be stored: bounded, and without the character that PostgreSQL's text cannot hold.
pub(crate) fn storable(text: &str) -> String {
    let text = text.replace('\0', "");
    text[..text.floor_char_boundary(ERROR_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errors_text_is_cut_between_characters() {
        assert_eq!(storable("a\0b"), "ab");
        assert_eq!(storable(&"가".repeat(500)), "가".repeat(341));
    }
}
