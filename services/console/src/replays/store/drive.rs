//! What a run does to its letters.

use std::time::Duration;

use serde_json::Value;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::interval;
use crate::replays::traces::Floor;

/// A letter of a run, without what is sent.
#[derive(Debug)]
pub(in crate::replays) struct Standing {
    pub(in crate::replays) position: i32,
    pub(in crate::replays) state: String,
    pub(in crate::replays) detail: Option<String>,
    pub(in crate::replays) target_topic: String,
    /// Digest of its key; `None` without key.
    pub(in crate::replays) key: Option<String>,
}

/// The letters of a run in its order.
pub(in crate::replays) async fn letters(pool: &PgPool, replay: Uuid) -> Result<Vec<Standing>, sqlx::Error> {
    sqlx::query_as!(
        Standing,
        r#"
        select r.position, r.state, r.detail, r.target_topic, md5(i.key) as key
        from console.replay_item r
        left join console.item i on i.item_id = r.item_id
        where r.replay_id = $1
        order by r.position
        "#,
        replay,
    )
    .fetch_all(pool)
    .await
}

/// Of the letters that were on their way when a process died: where each would lie on its replay topic.
pub(in crate::replays) async fn sending_of(
    pool: &PgPool,
    replay: Uuid,
) -> Result<Vec<(i32, String, Option<Uuid>)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select r.position, r.target_topic, i.message_id as "message_id?"
        from console.replay_item r
        left join console.item i on i.item_id = r.item_id
        where r.replay_id = $1 and r.state = 'sending'
        "#,
        replay,
    )
    .fetch_all(pool)
    .await?;
    Ok(rows.into_iter().map(|row| (row.position, row.target_topic, row.message_id)).collect())
}

/// Letters that a dead process had marked and not sent: to be sent.
pub(in crate::replays) async fn unmark(
    pool: &PgPool,
    replay: Uuid,
    positions: &[i32],
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        update console.replay_item
        set state = 'pending'
        where replay_id = $1 and position = any($2) and state = 'sending'
        "#,
        replay,
        positions,
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// Writes down where the topics ended; the first word counts.
pub(in crate::replays) async fn add_floors(
    pool: &PgPool,
    replay: Uuid,
    floors: &[Floor],
) -> Result<(), sqlx::Error> {
    let topics: Vec<String> = floors.iter().map(|floor| floor.0.clone()).collect();
    let partitions: Vec<i32> = floors.iter().map(|floor| floor.1).collect();
    let offsets: Vec<i64> = floors.iter().map(|floor| floor.2).collect();
    sqlx::query!(
        r#"
        insert into console.replay_floor (replay_id, topic, partition, "offset")
        select $1, t.topic, t.partition, t."offset"
        from unnest($2::text[], $3::int[], $4::bigint[]) as t (topic, partition, "offset")
        on conflict on constraint replay_floor_pkey do nothing
        "#,
        replay,
        &topics,
        &partitions,
        &offsets,
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// What [`add_floors`] wrote.
pub(in crate::replays) async fn floors(pool: &PgPool, replay: Uuid) -> Result<Vec<Floor>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"select topic, partition, "offset" from console.replay_floor where replay_id = $1"#,
        replay,
    )
    .fetch_all(pool)
    .await?;
    Ok(rows.into_iter().map(|row| (row.topic, row.partition, row.offset)).collect())
}

/// A letter that is to be sent now.
#[derive(Debug)]
pub(in crate::replays) struct Marked {
    pub(in crate::replays) position: i32,
    pub(in crate::replays) item_id: Uuid,
    pub(in crate::replays) target_topic: String,
    /// The run holds its claim, and the letter is all there.
    pub(in crate::replays) whole: bool,
    /// `None`: the index has forgotten it.
    pub(in crate::replays) item_state: Option<String>,
    pub(in crate::replays) partition: Option<i32>,
    pub(in crate::replays) replays: Option<i32>,
    pub(in crate::replays) key: Option<Vec<u8>>,
    pub(in crate::replays) value: Option<Vec<u8>>,
    pub(in crate::replays) headers: Option<Value>,
}

/// Marks letters as being on their way, while the lease is held and nobody has asked to stop; each once. Nothing comes
/// back when that is not so.
pub(in crate::replays) async fn mark_sending(
    pool: &PgPool,
    replay: Uuid,
    owner: Uuid,
    positions: &[i32],
) -> Result<Vec<Marked>, sqlx::Error> {
    sqlx::query_as!(
        Marked,
        r#"
        with mine as (
            select replay_id from console.replay
            where replay_id = $1 and owner = $2 and state = 'running' and not cancel_requested
                and lease_until > clock_timestamp()
            for share
        ), marked as (
            update console.replay_item r
            set state = 'sending'
            from mine
            where r.replay_id = mine.replay_id and r.position = any($3) and r.state = 'pending'
            returning r.position, r.item_id, r.record_id, r.target_topic
        )
        select m.position as "position!", m.item_id as "item_id!", m.target_topic as "target_topic!",
            coalesce(i.state = 'planned' and i.replay_id = $1 and d.record_id is not null, false) as "whole!",
            i.state as "item_state?", coalesce(i.origin_partition, d.dlt_partition) as partition, i.replays as "replays?", d.key, d.value,
            d.headers as "headers?"
        from marked m
        left join console.item i on i.item_id = m.item_id
        left join console.record d on d.record_id = m.record_id
        order by m.position
        "#,
        replay,
        owner,
        positions,
    )
    .fetch_all(pool)
    .await
}

/// Kafka has them. An outcome may have been faster.
pub(in crate::replays) async fn mark_sent(
    pool: &PgPool,
    replay: Uuid,
    positions: &[i32],
) -> Result<(), sqlx::Error> {
    if positions.is_empty() {
        return Ok(());
    }
    let mut tx = waybill_service::postgres::begin(pool).await?;
    sqlx::query!(
        r#"
        with locked as materialized (
            select i.item_id
            from console.replay_item r
            join console.item i on i.item_id = r.item_id
            where r.replay_id = $1 and r.position = any($2)
            order by i.item_id
            for update of i
        )
        update console.item i
        set state = case when i.state = 'planned' then 'sent' else i.state end,
            sent_at = clock_timestamp(),
            replays = greatest(i.replays, case when i.state = 'planned' then i.replays + 1 else i.replays end)
        from locked l
        where i.item_id = l.item_id and i.replay_id = $1
        "#,
        replay,
        positions,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        r#"
        update console.replay_item
        set sent_at = clock_timestamp(), state = case when state = 'sending' then 'sent' else state end
        where replay_id = $1 and position = any($2)
        "#,
        replay,
        positions,
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await
}

/// Kafka has not taken them, or they could not be sent: `state` is `failed` or `refused`.
pub(in crate::replays) async fn mark_failed(
    pool: &PgPool,
    replay: Uuid,
    failed: &[(i32, String)],
    state: &str,
) -> Result<(), sqlx::Error> {
    if failed.is_empty() {
        return Ok(());
    }
    let positions: Vec<i32> = failed.iter().map(|failed| failed.0).collect();
    let details: Vec<String> = failed.iter().map(|failed| failed.1.clone()).collect();
    let mut tx = waybill_service::postgres::begin(pool).await?;
    release_at(&mut tx, replay, Some(&positions)).await?;
    sqlx::query!(
        r#"
        update console.replay_item r
        set state = $4, detail = t.detail, settled_at = clock_timestamp()
        from unnest($2::int[], $3::text[]) as t (position, detail)
        where r.replay_id = $1 and r.position = t.position and r.state = 'sending'
        "#,
        replay,
        &positions,
        &details,
        state,
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await
}

/// What became of letters that are under way.
pub(in crate::replays) async fn outcomes(
    pool: &PgPool,
    replay: Uuid,
    positions: &[i32],
) -> Result<Vec<(i32, String)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select position, state
        from console.replay_item
        where replay_id = $1 and position = any($2) and state not in ('pending', 'sending', 'sent')
        "#,
        replay,
        positions,
    )
    .fetch_all(pool)
    .await?;
    Ok(rows.into_iter().map(|row| (row.position, row.state)).collect())
}

/// Letters of which nobody can say whether they were sent: counted as sent, so that nothing sends them again unasked, and
/// told apart by `reason`. An outcome still settles them.
pub(in crate::replays) async fn doubt(
    pool: &PgPool,
    replay: Uuid,
    positions: &[i32],
    reason: &str,
) -> Result<(), sqlx::Error> {
    mark_sent(pool, replay, positions).await?;
    sqlx::query!(
        r#"
        update console.replay_item
        set state = 'no_outcome', detail = $3, settled_at = clock_timestamp()
        where replay_id = $1 and position = any($2) and state = 'sent'
        "#,
        replay,
        positions,
        reason,
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// Letters whose outcome has not come in time. The item stays `sent`, for everybody to see.
pub(in crate::replays) async fn overdue(
    pool: &PgPool,
    replay: Uuid,
    timeout: Duration,
) -> Result<Vec<i32>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        update console.replay_item
        set state = 'no_outcome', settled_at = clock_timestamp()
        where replay_id = $1 and state = 'sent' and sent_at < clock_timestamp() - $2::interval
        returning position
        "#,
        replay,
        interval(timeout),
    )
    .fetch_all(pool)
    .await
}

/// Gives up letters that were not sent: these, or all that are left.
pub(in crate::replays) async fn stop(
    pool: &PgPool,
    replay: Uuid,
    positions: Option<&[i32]>,
    reason: &str,
) -> Result<(), sqlx::Error> {
    let mut tx = waybill_service::postgres::begin(pool).await?;
    sqlx::query!(
        r#"
        update console.replay_item
        set state = 'stopped', detail = $3, settled_at = clock_timestamp()
        where replay_id = $1 and state = 'pending' and ($2::int[] is null or position = any($2))
        "#,
        replay,
        positions,
        reason,
    )
    .execute(&mut *tx)
    .await?;
    release_at(&mut tx, replay, positions).await?;
    tx.commit().await
}

/// Gives back what the run holds and has not sent.
async fn release_at(
    tx: &mut PgConnection,
    replay: Uuid,
    positions: Option<&[i32]>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        with locked as materialized (
            select i.item_id
            from console.replay_item r
            join console.item i on i.item_id = r.item_id
            where r.replay_id = $1 and ($2::int[] is null or r.position = any($2))
                and i.replay_id = $1 and i.state = 'planned'
            order by i.item_id
            for update of i
        )
        update console.item i
        set state = case when i.died_in is null then 'open' else 'failed_again' end
        from locked l
        where i.item_id = l.item_id and i.replay_id = $1 and i.state = 'planned'
        "#,
        replay,
        positions,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Ends the run.
pub(in crate::replays) async fn finish(
    tx: &mut PgConnection,
    replay: Uuid,
    owner: Uuid,
    state: &str,
    reason: Option<&str>,
) -> Result<bool, sqlx::Error> {
    let ended = sqlx::query!(
        r#"
        update console.replay
        set state = $3, reason = $4, finished_at = clock_timestamp()
        where replay_id = $1 and owner = $2 and state = 'running'
        "#,
        replay,
        owner,
        state,
        reason,
    )
    .execute(tx)
    .await?;
    Ok(ended.rows_affected() == 1)
}

/// What the run did to each letter, into the audit.
pub(in crate::replays) async fn audit_end(
    tx: &mut PgConnection,
    audit: i64,
    replay: Uuid,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        insert into console.audit_result (audit_id, item_id, consumer_group, source_topic, message_id, result, detail)
        select $1, r.item_id, i.consumer_group, i.source_topic, i.message_id, r.state, r.detail
        from console.replay_item r
        join console.item i on i.item_id = r.item_id
        where r.replay_id = $2
        "#,
        audit,
        replay,
    )
    .execute(tx)
    .await?;
    Ok(())
}
