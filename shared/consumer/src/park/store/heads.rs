//! What a drainer looks for: due keys, their heads, and outcomes that are not told yet.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool, postgres::types::PgInterval};
use uuid::Uuid;

/// A key that this transaction drains.
#[derive(Debug, Clone)]
pub(crate) struct KeyRow {
    pub(crate) id: i64,
    pub(crate) key: Vec<u8>,
    pub(crate) keyless: bool,
    pub(crate) attempts: i32,
    pub(crate) first_failed_at: Option<DateTime<Utc>>,
    /// Since the first failure, by the database's clock; 0 before it.
    pub(crate) failing_ms: i64,
    /// Waiting and due, for messages that are no replays.
    pub(crate) due: bool,
}

/// The first message of a key that is not finished.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) position: i64,
    pub(crate) message_id: Uuid,
    pub(crate) replay_id: Option<Uuid>,
    pub(crate) read_from: String,
    pub(crate) record_partition: i32,
    pub(crate) record_offset: i64,
    pub(crate) record_timestamp_ms: Option<i64>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: String,
    /// Of a replay.
    pub(crate) due: bool,
    /// Its dead letter is to be published; the failure says why.
    pub(crate) dead: bool,
    pub(crate) error_code: Option<String>,
    pub(crate) error_class: Option<String>,
    pub(crate) error_text: Option<String>,
    pub(crate) failed_at: Option<DateTime<Utc>>,
    pub(crate) failed_traceparent: Option<String>,
    /// Of a replay: no transaction is left that may be handling a message of its key.
    pub(crate) clear: bool,
    /// It waits for them already.
    pub(crate) fenced: bool,
    /// How long its schema has been unknown, by the database's clock.
    pub(crate) schema_ms: i64,
}

/// A replay whose outcome is to be told.
#[derive(Debug)]
pub(crate) struct Untold {
    pub(crate) position: i64,
    pub(crate) message_id: Uuid,
    pub(crate) replay_id: Uuid,
    pub(crate) outcome: String,
    pub(crate) headers: String,
}

/// Keys to look at, the longest due first, and whether anything is parked at all. No locks: the look itself decides.
///
/// Only so many are looked up, so a key that has nothing to do must not be among them: nothing but a look may find that
/// it waits, and that look moves its time.
pub(crate) async fn due(
    pool: &PgPool,
    group: &str,
    topic: &str,
    except: &[i64],
    most: i64,
) -> Result<(Vec<i64>, bool), sqlx::Error> {
    let row = sqlx::query!(
        r#"with clock as materialized (select messaging.now() as now),
         waiting as (
             select k.id, k.due_at from messaging.parked_key k
             where k.consumer_group = $1 and k.topic = $2 and k.state = 'waiting' and k.id <> all($3)
               -- A subselect is a constant to the index.
               and k.due_at <= (select now from clock)
               and not exists (
                   select from messaging.parked_message m
                   where m.parked_key_id = k.id and (m.replay_id is null) = false
                     and m.due_at > (select now from clock)
                     and (m.outcome is null or not exists (
                         select from messaging.parked_message h where h.parked_key_id = k.id and h.outcome is null)))
             order by k.due_at
             limit $4
         ), replays as (
             select m.parked_key_id as id, min(m.due_at) as due_at from messaging.parked_message m
             join messaging.parked_key k on k.id = m.parked_key_id
             where m.replay_id is not null and m.due_at <= (select now from clock)
               and k.consumer_group = $1 and k.topic = $2 and k.id <> all($3)
             group by m.parked_key_id
             order by min(m.due_at)
             limit $4
         ), both_kinds as (
             select id, min(due_at) as due_at from (select * from replays union all select * from waiting) b group by id
         )
         select array(select id from both_kinds order by due_at) as "ids!",
             exists (select from messaging.parked_key k where k.consumer_group = $1 and k.topic = $2) as "any!""#,
        group,
        topic,
        except,
        most,
    )
    .fetch_one(pool)
    .await?;
    Ok((row.ids, row.any))
}

/// Takes the key, unless another drainer has it or it is gone. Appending goes on meanwhile.
pub(crate) async fn lock(tx: &mut PgConnection, id: i64) -> Result<Option<KeyRow>, sqlx::Error> {
    sqlx::query_as!(
        KeyRow,
        r#"select id, key, keyless, attempts, first_failed_at,
             coalesce(extract(epoch from messaging.now() - first_failed_at) * 1000, 0)::bigint as "failing_ms!",
             state = 'waiting' and due_at <= messaging.now() as "due!"
         from messaging.parked_key where id = $1
         for no key update skip locked"#,
        id,
    )
    .fetch_optional(tx)
    .await
}

/// Takes the key and waits for it. False when it is gone.
pub(crate) async fn wait(tx: &mut PgConnection, id: i64) -> Result<bool, sqlx::Error> {
    let locked = sqlx::query!("select id from messaging.parked_key where id = $1 for no key update", id);
    Ok(locked.fetch_optional(tx).await?.is_some())
}

/// The head of a key. A statement behind [`lock`], because one statement with it would see the messages as they were
/// before the lock: also a head that another drainer has just finished.
pub(crate) async fn head(tx: &mut PgConnection, key: i64) -> Result<Option<Head>, sqlx::Error> {
    sqlx::query_as!(
        Head,
        r#"select position, message_id, replay_id, read_from, record_partition, record_offset, record_timestamp_ms,
             value, headers::text as "headers!", coalesce(due_at <= messaging.now(), false) as "due!", dead,
             error_code, error_class, error_text, failed_at, failed_traceparent,
             -- A fence that is still to come is of another cluster, from which this database was restored.
             replay_id is null or coalesce(fence < pg_snapshot_xmin(pg_current_snapshot())
                 or fence > pg_snapshot_xmax(pg_current_snapshot()), false) as "clear!", fence is not null as "fenced!",
             coalesce(case when error_class = 'decode' then extract(epoch from messaging.now() - failed_at) * 1000
                      end, 0)::bigint as "schema_ms!"
         from messaging.parked_message
         where parked_key_id = $1 and outcome is null
         order by (replay_id is null), position
         limit 1"#,
        key,
    )
    .fetch_optional(tx)
    .await
}

/// Begins to wait for the transactions that were there before the park of this replay. A batch takes its transaction's
/// number with its claim, and asks for parks behind it: one that comes later than the fence sees the park.
pub(crate) async fn fence(tx: &mut PgConnection, position: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "update messaging.parked_message set fence = pg_current_xact_id() where position = $1 and fence is null",
        position,
    )
    .execute(tx)
    .await
    .map(drop)
}

/// Takes a finished replay of the key whose outcome should have been told by now.
pub(crate) async fn untold(
    pool: &PgPool,
    key: i64,
    lease: PgInterval,
) -> Result<Option<Untold>, sqlx::Error> {
    sqlx::query_as!(
        Untold,
        r#"update messaging.parked_message set due_at = messaging.now() + $2::interval
         where position = (
             select position from messaging.parked_message
             where parked_key_id = $1 and (replay_id is null) = false and outcome is not null
               and due_at <= messaging.now()
             order by position
             limit 1
             for update skip locked)
         returning position, message_id, replay_id as "replay_id!", outcome as "outcome!",
             headers::text as "headers!""#,
        key,
        lease,
    )
    .fetch_optional(pool)
    .await
}
