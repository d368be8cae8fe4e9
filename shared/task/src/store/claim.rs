//! The one conditional UPDATE that gives a task to an attempt.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use super::Store;
use crate::{Status, TaskId};

/// Constraint that refuses a second running task of one key.
const RUNNING_KEY: &str = "task_running_key_idx";
/// Looks after a lost race, before the tasks are left to the next poll.
const RACES: u32 = 3;

/// What a worker can run, and how often each kind is tried.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kinds {
    names: Vec<String>,
    limits: Vec<i32>,
}

impl Kinds {
    pub(crate) fn new(kinds: impl IntoIterator<Item = (String, u32)>) -> Self {
        let limit = |limit| i32::try_from(limit).unwrap_or(i32::MAX);
        let (names, limits) = kinds.into_iter().map(|(name, most)| (name, limit(most))).unzip();
        Self { names, limits }
    }
}

/// A task that a claim took.
#[derive(Debug, Clone)]
pub(crate) struct Claimed {
    pub(crate) id: Uuid,
    pub(crate) kind: String,
    pub(crate) key: Option<String>,
    pub(crate) payload: Value,
    /// `Running`, or `Failed` when the last attempt's lease had run out.
    pub(crate) status: Status,
    pub(crate) token: Option<Uuid>,
    pub(crate) attempts: i32,
    pub(crate) traceparent: Option<String>,
    pub(crate) tracestate: Option<String>,
}

/// How far the walk over due tasks has come. `None`: it begins.
pub(crate) type Cursor = Option<(DateTime<Utc>, i64)>;

/// The statement around its choice of candidates (at most 1,000). Shared parameters: $1 kinds, $2 their limits, $3 lease
/// in seconds, $4 most rows.
///
/// An expired lease is due like anything else. A task with a key must be the first of its key: the running one, else the
/// lowest `seq`. Each part is written so that only one index can serve it, also for a plan that was made when the table
/// was empty: `status || ''` keeps the partial indexes out of a look by id, the sorted look for the first of a key can
/// only go by the index of keys.
macro_rules! claim {
    ($candidates:literal, $($argument:expr),* $(,)?) => {
        sqlx::query_as!(
            Claimed,
            r#"
            with due as (
                select l.id
                from ("# + $candidates + r#") c
                cross join lateral (
                    select t.id
                    from messaging.task t
                    where t.id = c.id and t.status || '' in ('pending', 'running')
                      and t.run_at <= (select messaging.task_now())
                    limit 1
                    for update skip locked
                ) l
                where c.kind = any($1::text[])
                  and (c.key is null or c.id = (
                      select o.id
                      from messaging.task o
                      where o.key = c.key and o.status in ('pending', 'running')
                      order by o.status <> 'running', o.seq
                      limit 1
                  ))
                limit $4
            )
            update messaging.task t
            set run_at = messaging.task_now() + make_interval(secs => $3::float8),
                updated_at = messaging.task_now(),
                (status, token, attempts, last_error) = (
                    select
                        case when again then 'running' else 'failed' end,
                        case when again then gen_random_uuid() end,
                        t.attempts + again::integer,
                        case when again then t.last_error else left(concat_ws('; ',
                            'no attempt is left, and the last one did not report', t.last_error), 1024) end
                    from (select t.attempts < ($2::integer[])[array_position($1::text[], t.kind)]) a (again)
                )
            where t.id = any(array(select id from due))
            returning t.id, t.kind, t.key, t.payload, t.status as "status!: String", t.token, t.attempts,
                      t.traceparent, t.tracestate
            "#,
            $($argument),*
        )
    };
}

impl Store {
    /// Claims due tasks behind the cursor, the longest due first.
    pub(crate) async fn claim_due(
        &self,
        kinds: &Kinds,
        lease: Duration,
        most: usize,
        cursor: Cursor,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        let (run_at, seq) = cursor.unzip();
        for _ in 0..=RACES {
            let claimed = claim!(
                r"select id, kind, key
                  from messaging.task
                  where status in ('pending', 'running') and run_at <= (select messaging.task_now())
                    and (run_at, seq) > (coalesce($5::timestamptz, '-infinity'), coalesce($6::bigint, 0))
                  order by run_at, seq
                  limit 1000",
                &kinds.names,
                &kinds.limits,
                lease.as_secs_f64(),
                most as i64,
                run_at,
                seq,
            )
            .fetch_all(&self.pool)
            .await;
            match claimed {
                Err(error) if is_race(&error) => {}
                result => return result,
            }
        }
        Ok(Vec::new())
    }

    /// Where the next claim goes on, behind one that looked at 1,000 tasks without taking enough. `None`: it has seen all
    /// that is due. In the middle of what it has seen, for what was taken meanwhile, here or elsewhere, is due no more and
    /// does not count: at the end of as many again there would be tasks that nobody has looked at.
    pub(crate) async fn claim_end(&self, cursor: Cursor) -> Result<Cursor, sqlx::Error> {
        let (run_at, seq) = cursor.unzip();
        let end = sqlx::query!(
            r#"
            select run_at, seq
            from messaging.task
            where status in ('pending', 'running') and run_at <= (select messaging.task_now())
              and (run_at, seq) > (coalesce($1::timestamptz, '-infinity'), coalesce($2::bigint, 0))
            order by run_at, seq
            offset 499
            limit 1
            "#,
            run_at,
            seq,
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(end.map(|row| (row.run_at, row.seq)))
    }

    /// Claims these tasks and the first open ones of these keys, as far as they are due.
    pub(crate) async fn claim_named(
        &self,
        kinds: &Kinds,
        lease: Duration,
        most: usize,
        ids: &[TaskId],
        keys: &[String],
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
        for _ in 0..=RACES {
            let claimed = claim!(
                r"select id, kind, key
                  from messaging.task
                  where id = any($5::uuid[] || array(
                      select h.id
                      from unnest($6::text[]) as k (key)
                      cross join lateral (
                          select o.id
                          from messaging.task o
                          where o.key = k.key and o.status in ('pending', 'running')
                          order by o.status <> 'running', o.seq
                          limit 1
                      ) h
                  ))
                  limit 1000",
                &kinds.names,
                &kinds.limits,
                lease.as_secs_f64(),
                most as i64,
                &ids,
                keys,
            )
            .fetch_all(&self.pool)
            .await;
            match claimed {
                Err(error) if is_race(&error) => {}
                result => return result,
            }
        }
        Ok(Vec::new())
    }
}

/// Two claims that each took a task of one key meet in the unique index; the later one looks again.
fn is_race(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|e| {
        // A deadlock is the same race over two keys.
        e.constraint() == Some(RUNNING_KEY) || e.code().is_some_and(|code| code == "40P01")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;
    use waybill_testkit::Database;

    use super::*;
    use crate::{New, Tasks};

    #[tokio::test]
    async fn a_walk_over_more_than_is_seen_at_once_leaves_out_nothing() {
        let database = Database::create(&[crate::migrator()]).await;
        let mut tx = database.pool.begin().await.unwrap();
        let tasks = Tasks::new();
        let mut add = async |count: usize, key: Option<&str>| {
            for _ in 0..count {
                let new = New::of("work", json!({}));
                let new = if let Some(key) = key { new.key(key) } else { new };
                tasks.enqueue(&mut tx, &new).await.unwrap();
            }
        };
        // What is taken from the front makes room for as many that were not looked at.
        add(5, None).await;
        add(995, Some("k")).await;
        add(6, None).await;
        add(3, None).await;
        tx.commit().await.unwrap();
        let (store, kinds) = (Store::new(&database.pool), Kinds::new([("work".to_owned(), 12)]));
        let (mut cursor, mut claimed) = (None, 0);
        loop {
            claimed += store.claim_due(&kinds, Duration::from_secs(60), 100, cursor).await.unwrap().len();
            cursor = store.claim_end(cursor).await.unwrap();
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(claimed, 5 + 1 + 6 + 3);
    }
}
