//! Every statement of searching. Filters are optional parameters, so each is planned with its values: see [`begin`].

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::{PgConnection, PgPool, PgTransaction};
use uuid::Uuid;
use waybill_service::postgres;

use super::filter::Selection;

/// A transaction in which every statement is planned for its values: a plan for "any filter" reads the whole table.
pub(crate) async fn begin(pool: &PgPool) -> Result<PgTransaction<'static>, sqlx::Error> {
    let mut tx = postgres::begin(pool).await?;
    sqlx::query_scalar!(r#"select set_config('plan_cache_mode', 'force_custom_plan', true)"#)
        .fetch_one(&mut *tx)
        .await?;
    Ok(tx)
}

/// Whether one of these is a dead-letter topic or a source topic.
pub(super) async fn is_topic(db: &mut PgConnection, names: &[String]) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select exists (select 1 from console.failure where dlt_topic = any($1) or source_topic = any($1))
            or exists (select 1 from console.dlt_topic where dlt_topic = any($1)) as "known!"
        "#,
        names,
    )
    .fetch_one(db)
    .await
}

/// Whether one of these is a group that failed.
pub(super) async fn is_group(db: &mut PgConnection, names: &[String]) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"select exists (select 1 from console.failure where consumer_group = any($1)) as "known!""#,
        names,
    )
    .fetch_one(db)
    .await
}

/// The groups of dead letters with these marks.
pub(super) async fn failure_ids(
    db: &mut PgConnection,
    topics: Option<&[String]>,
    groups: Option<&[String]>,
    error_code: Option<&str>,
    error_class: Option<&str>,
    event_type: Option<&str>,
) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select failure_id
        from console.failure
        where ($1::text[] is null or dlt_topic = any($1) or source_topic = any($1))
            and ($2::text[] is null or consumer_group = any($2))
            and ($3::text is null or error_code = $3)
            and ($4::text is null or error_class = $4)
            and ($5::text is null or event_type = $5)
        "#,
        topics,
        groups,
        error_code,
        error_class,
        event_type,
    )
    .fetch_all(db)
    .await
}

/// A group, not yet counted.
#[derive(Debug)]
pub(super) struct FailureRow {
    pub(super) failure_id: i64,
    pub(super) dlt_topic: String,
    pub(super) consumer_group: String,
    pub(super) source_topic: String,
    pub(super) error_code: String,
    pub(super) error_class: String,
    pub(super) event_type: String,
    pub(super) first_seen: DateTime<Utc>,
    pub(super) last_seen: DateTime<Utc>,
}

pub(super) async fn failures(
    db: &mut PgConnection,
    ids: Option<&[i64]>,
) -> Result<Vec<FailureRow>, sqlx::Error> {
    sqlx::query_as!(
        FailureRow,
        r#"
        select failure_id, dlt_topic, consumer_group, source_topic, error_code, error_class, event_type, first_seen,
            last_seen
        from console.failure
        where $1::bigint[] is null or failure_id = any($1)
        "#,
        ids,
    )
    .fetch_all(db)
    .await
}

/// Items of a group in a state.
#[derive(Debug)]
pub(super) struct CountRow {
    pub(super) failure_id: i64,
    pub(super) state: String,
    pub(super) count: i64,
    pub(super) oldest: DateTime<Utc>,
}

/// Read from item_failure_state_idx alone.
pub(super) async fn counts(db: &mut PgConnection, ids: Option<&[i64]>) -> Result<Vec<CountRow>, sqlx::Error> {
    sqlx::query_as!(
        CountRow,
        r#"
        select failure_id, state, count(*) as "count!", min(dead_at) as "oldest!"
        from console.item
        where $1::bigint[] is null or failure_id = any($1)
        group by failure_id, state
        "#,
        ids,
    )
    .fetch_all(db)
    .await
}

/// Arrivals of a group in an hour of the last day.
#[derive(Debug)]
pub(super) struct HourRow {
    pub(super) failure_id: i64,
    pub(super) hour: DateTime<Utc>,
    pub(super) arrived: i64,
}

pub(super) async fn hours(db: &mut PgConnection, ids: &[i64]) -> Result<Vec<HourRow>, sqlx::Error> {
    sqlx::query_as!(
        HourRow,
        r#"
        select failure_id, hour, arrived
        from console.failure_hour
        where failure_id = any($1) and hour > clock_timestamp() - interval '1 day'
        order by failure_id, hour
        "#,
        ids,
    )
    .fetch_all(db)
    .await
}

/// A topic as the broker has it.
#[derive(Debug)]
pub(super) struct TopicRow {
    pub(super) dlt_topic: String,
    pub(super) partitions: i32,
    pub(super) retention_ms: Option<i64>,
}

pub(super) async fn topics(db: &mut PgConnection) -> Result<Vec<TopicRow>, sqlx::Error> {
    sqlx::query_as!(TopicRow, r#"select dlt_topic, partitions, retention_ms from console.dlt_topic"#)
        .fetch_all(db)
        .await
}

/// An item with the marks of its group.
#[derive(Debug)]
pub(crate) struct ItemRow {
    pub(crate) item_id: Uuid,
    pub(crate) state: String,
    pub(crate) dlt_topic: String,
    pub(crate) consumer_group: String,
    pub(crate) source_topic: String,
    pub(crate) message_id: Uuid,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) event_type: String,
    pub(crate) error_code: String,
    pub(crate) error_class: String,
    pub(crate) attempts: Option<i32>,
    pub(crate) deaths: i32,
    pub(crate) replays: i32,
    pub(crate) dead_at: DateTime<Utc>,
    pub(crate) first_dead_at: DateTime<Utc>,
    pub(crate) origin_partition: Option<i32>,
    pub(crate) origin_offset: Option<i64>,
    pub(crate) trace_id: Option<String>,
    pub(crate) value_bytes: Option<i32>,
    pub(crate) value_left_out: bool,
    pub(crate) record_id: i64,
    pub(crate) replay_id: Option<Uuid>,
    pub(crate) sent_at: Option<DateTime<Utc>>,
    pub(crate) archived_reason: Option<String>,
}

/// A page, newest first, after a place.
pub(crate) async fn list(
    db: &mut PgConnection,
    of: &Selection,
    after: Option<(DateTime<Utc>, Uuid)>,
    limit: i64,
) -> Result<Vec<ItemRow>, sqlx::Error> {
    let (after_at, after_id) = after.unzip();
    sqlx::query_as!(
        ItemRow,
        r#"
        select i.item_id, i.state, i.dlt_topic, i.consumer_group, i.source_topic, i.message_id, i.key, f.event_type,
            f.error_code, f.error_class, i.attempts, i.deaths, i.replays, i.dead_at, i.first_dead_at, i.origin_partition,
            i.origin_offset, i.trace_id, i.value_bytes, i.value_left_out, i.record_id, i.replay_id,
            i.sent_at, i.archived_reason
        from console.item i
        join console.failure f on f.failure_id = i.failure_id
        where ($1::bigint[] is null or i.failure_id = any($1))
            and ($2::bytea is null or i.key = $2)
            and ($3::uuid is null or i.message_id = $3)
            and ($4::text is null or i.trace_id = $4)
            and ($5::text[] is null or i.state = any($5))
            and ($6::timestamptz is null or i.dead_at >= $6)
            and ($7::timestamptz is null or i.dead_at < $7)
            and ($8::int is null or i.attempts >= $8)
            and ($9::int is null or i.attempts <= $9)
            and ($10::uuid[] is null or i.item_id = any($10))
            and ($11::timestamptz is null or (i.dead_at, i.item_id) < ($11, $12))
        order by i.dead_at desc, i.item_id desc
        limit $13
        "#,
        of.failures.as_deref(),
        of.key.as_deref(),
        of.message_id,
        of.trace_id,
        of.states.as_deref(),
        of.since,
        of.until,
        of.min_attempts,
        of.max_attempts,
        of.ids.as_deref(),
        after_at,
        after_id,
        limit,
    )
    .fetch_all(db)
    .await
}

/// What a filter selects for an act.
#[derive(Debug)]
pub(crate) struct Oldest {
    /// Letters with the dead letter that each stands for now, up to the limit.
    pub(crate) letters: Vec<(Uuid, i64)>,
    /// Letters that the filter matches, those beyond the limit included.
    pub(crate) matched: i64,
}

/// The oldest first: what waits longest is planned first. With a loop cap, letters that no replay can take come last, and
/// use up no limit.
pub(crate) async fn oldest(
    db: &mut PgConnection,
    of: &Selection,
    loop_cap: Option<i32>,
    limit: i64,
) -> Result<Oldest, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select i.item_id, i.record_id, count(*) over () as "matched!"
        from console.item i
        where ($1::bigint[] is null or i.failure_id = any($1))
            and ($2::bytea is null or i.key = $2)
            and ($3::uuid is null or i.message_id = $3)
            and ($4::text is null or i.trace_id = $4)
            and ($5::text[] is null or i.state = any($5))
            and ($6::timestamptz is null or i.dead_at >= $6)
            and ($7::timestamptz is null or i.dead_at < $7)
            and ($8::int is null or i.attempts >= $8)
            and ($9::int is null or i.attempts <= $9)
        order by $10::int is not null and (i.replays >= $10 or i.value_left_out or not i.headers_readable), i.dead_at,
            i.item_id
        limit $11
        "#,
        of.failures.as_deref(),
        of.key.as_deref(),
        of.message_id,
        of.trace_id,
        of.states.as_deref(),
        of.since,
        of.until,
        of.min_attempts,
        of.max_attempts,
        loop_cap,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(Oldest {
        matched: rows.first().map_or(0, |row| row.matched),
        letters: rows.into_iter().map(|row| (row.item_id, row.record_id)).collect(),
    })
}

/// Items at or above a number of replays that are not settled.
pub(super) async fn loops(db: &mut PgConnection, cap: i32, limit: i64) -> Result<Vec<ItemRow>, sqlx::Error> {
    sqlx::query_as!(
        ItemRow,
        r#"
        select i.item_id, i.state, i.dlt_topic, i.consumer_group, i.source_topic, i.message_id, i.key, f.event_type,
            f.error_code, f.error_class, i.attempts, i.deaths, i.replays, i.dead_at, i.first_dead_at, i.origin_partition,
            i.origin_offset, i.trace_id, i.value_bytes, i.value_left_out, i.record_id, i.replay_id,
            i.sent_at, i.archived_reason
        from console.item i
        join console.failure f on f.failure_id = i.failure_id
        where i.replays >= $1 and i.state in ('open', 'failed_again') and i.replays > 0
        order by i.replays desc, i.dead_at desc, i.item_id desc
        limit $2
        "#,
        cap,
        limit,
    )
    .fetch_all(db)
    .await
}

/// The latest dead letter of an item, whole.
#[derive(Debug)]
pub(super) struct RecordRow {
    pub(super) origin_topic: Option<String>,
    pub(super) origin_timestamp: Option<DateTime<Utc>>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) headers: Value,
}

/// `with_value`: payloads that nobody may see are not even read.
pub(super) async fn record(
    db: &mut PgConnection,
    record_id: i64,
    with_value: bool,
) -> Result<Option<RecordRow>, sqlx::Error> {
    sqlx::query_as!(
        RecordRow,
        r#"
        select origin_topic, origin_timestamp, case when $2 then value end as value, headers
        from console.record
        where record_id = $1
        "#,
        record_id,
        with_value,
    )
    .fetch_optional(db)
    .await
}

/// Its dead letters, latest first.
pub(super) async fn deaths(
    db: &mut PgConnection,
    item: Uuid,
) -> Result<Vec<super::view::Death>, sqlx::Error> {
    sqlx::query_as!(
        super::view::Death,
        r#"
        select dlt_topic as topic, dlt_partition as partition, dlt_offset as "offset", dialect, dead_at, failed_at,
            error_code, error_class, error_message, attempts, replay_id
        from console.record
        where item_id = $1
        order by failed_at desc, record_id desc
        limit 100
        "#,
        item,
    )
    .fetch_all(db)
    .await
}

/// Its replays, latest first.
pub(super) async fn sendings(
    db: &mut PgConnection,
    item: Uuid,
) -> Result<Vec<super::view::Sending>, sqlx::Error> {
    sqlx::query_as!(
        super::view::Sending,
        r#"
        select replay_id, state, detail, sent_at, settled_at
        from console.replay_item
        where item_id = $1
        order by replay_id desc
        limit 100
        "#,
        item,
    )
    .fetch_all(db)
    .await
}
