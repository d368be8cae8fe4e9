//! All SQL of the crash count.

use sqlx::{PgPool, postgres::types::PgInterval};
use uuid::Uuid;

use super::{CRASHES, Place, STARTS};

/// How the partition stands now.
pub(super) struct Start {
    pub(super) starts: i32,
    pub(super) until_offset: i64,
}

/// Counts the start. Within the range of a suspect partition a start at another offset goes on with the count: one
/// message at a time, a part of the range was finished.
pub(super) async fn begin(
    pool: &PgPool,
    place: &Place,
    assignment: Uuid,
    first: i64,
    end: i64,
) -> Result<Start, sqlx::Error> {
    sqlx::query_as!(
        Start,
        "insert into messaging.consumer_start as s
             (consumer_group, topic, partition, first_offset, until_offset, starts, assignment, started_at)
         values ($1, $2, $3, $4, $5, 1, $6, messaging.now())
         on conflict (consumer_group, topic, partition) do update set
             starts = case
                 when s.assignment = excluded.assignment then s.starts
                 when s.first_offset = excluded.first_offset then s.starts + 1
                 when s.starts >= $7 and excluded.first_offset >= s.first_offset
                     and excluded.first_offset < s.until_offset then s.starts + 1
                 else 1 end,
             until_offset = case
                 when s.first_offset = excluded.first_offset then greatest(s.until_offset, excluded.until_offset)
                 when s.starts >= $7 and excluded.first_offset >= s.first_offset
                     and excluded.first_offset < s.until_offset then s.until_offset
                 else excluded.until_offset end,
             first_offset = excluded.first_offset,
             assignment = excluded.assignment,
             started_at = excluded.started_at
         returning starts, until_offset",
        place.group.as_str(),
        place.topic.as_str(),
        place.partition,
        first,
        end,
        assignment,
        STARTS,
    )
    .fetch_one(pool)
    .await
}

/// Forgets the start, unless another assignment has begun since.
pub(super) async fn end(pool: &PgPool, place: &Place, assignment: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "delete from messaging.consumer_start
         where consumer_group = $1 and topic = $2 and partition = $3 and assignment = $4",
        place.group.as_str(),
        place.topic.as_str(),
        place.partition,
        assignment,
    )
    .execute(pool)
    .await
    .map(drop)
}

/// Stores that the handler begins with the message. Returns how often it has, or `None` when the inbox knows the
/// message: then its handler is not called, and a crash that came after its commit is not held against it. A `dead` row
/// does not stand against a replay.
pub(super) async fn before(
    pool: &PgPool,
    group: &str,
    id: Uuid,
    replay: Option<Uuid>,
    assignment: Uuid,
) -> Result<Option<i32>, sqlx::Error> {
    sqlx::query_scalar!(
        "insert into messaging.suspect as s
             (consumer_group, message_id, replay_id, crashes, assignment, begun_at)
         select $1, $2, $3, 1, $4, messaging.now()
         where not exists (
             select from messaging.processed_message p
             where p.consumer_group = $1 and p.message_id = $2
                 and (p.outcome = 'done' or $3::uuid is null))
         on conflict (consumer_group, message_id) do update set
             crashes = case
                 when s.replay_id is distinct from excluded.replay_id then 1
                 when s.assignment = excluded.assignment then s.crashes
                 else least(s.crashes, $5) + 1 end,
             replay_id = excluded.replay_id,
             assignment = excluded.assignment,
             begun_at = excluded.begun_at
         returning crashes",
        group,
        id,
        replay,
        assignment,
        CRASHES,
    )
    .fetch_optional(pool)
    .await
}

/// The message has ended, one way or another.
pub(super) async fn after(pool: &PgPool, group: &str, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query!("delete from messaging.suspect where consumer_group = $1 and message_id = $2", group, id)
        .execute(pool)
        .await
        .map(drop)
}

/// The message was taken from its handler in order: this time was no crash, earlier ones may have been.
pub(super) async fn taken_back(
    pool: &PgPool,
    group: &str,
    id: Uuid,
    assignment: Uuid,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "with ended as (
             update messaging.suspect set crashes = crashes - 1, assignment = gen_random_uuid()
             where consumer_group = $1 and message_id = $2 and assignment = $3 and crashes > 1
         )
         delete from messaging.suspect
         where consumer_group = $1 and message_id = $2 and assignment = $3 and crashes = 1",
        group,
        id,
        assignment,
    )
    .execute(pool)
    .await
    .map(drop)
}

/// Whether a handler has begun the message before and not ended.
pub(super) async fn is_suspect(pool: &PgPool, group: &str, id: Uuid) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"select exists (
             select from messaging.suspect where consumer_group = $1 and message_id = $2) as "suspect!""#,
        group,
        id,
    )
    .fetch_one(pool)
    .await
}

/// Deletes rows that nothing has touched for so long, at most `most` of each table. Rows that another transaction
/// holds are left for the next step.
pub(super) async fn purge(pool: &PgPool, untouched: PgInterval, most: i64) -> Result<u64, sqlx::Error> {
    let purged = sqlx::query!(
        "with clock as materialized (
             select messaging.now() - $1::interval as before
         ), old_start as materialized (
             select s.consumer_group, s.topic, s.partition from messaging.consumer_start s, clock
             where s.started_at < clock.before limit $2 for update of s skip locked
         ), start as (
             delete from messaging.consumer_start s using old_start o
             where s.consumer_group = o.consumer_group and s.topic = o.topic and s.partition = o.partition
             returning 1
         ), old_suspect as materialized (
             select s.consumer_group, s.message_id from messaging.suspect s, clock
             where s.begun_at < clock.before limit $2 for update of s skip locked
         ), suspect as (
             delete from messaging.suspect s using old_suspect o
             where s.consumer_group = o.consumer_group and s.message_id = o.message_id
             returning 1
         )
         select (select count(*) from start) + (select count(*) from suspect) as \"purged!\"",
        untouched,
        most,
    )
    .fetch_one(pool)
    .await?;
    Ok(u64::try_from(purged.purged).unwrap_or(0))
}
