//! Making a run, asking it to stop, showing it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::interval;
use crate::replays::view::{Progress, Replay, ReplayRequest, Trouble};

/// A run that nobody drives yet.
pub(in crate::replays) async fn insert(
    tx: &mut PgConnection,
    id: Uuid,
    by: Uuid,
    request: &ReplayRequest,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        insert into console.replay (replay_id, plan_id, started_by, rate, canary, stop_after_failures)
        values ($1, $2, $3, $4, $5, $6)
        "#,
        id,
        request.plan_id,
        by,
        request.rate,
        request.canary,
        request.stop_after_failures,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Takes the plan's letters that are still as they were, that nobody holds, and that would overtake nothing of their key
/// that another run has in flight.
pub(in crate::replays) async fn take(
    tx: &mut PgConnection,
    replay: Uuid,
    plan: Uuid,
    loop_cap: i32,
    outcome_timeout: Duration,
) -> Result<i64, sqlx::Error> {
    // Locked first, with all that is unsettled of their keys, in the order of their ids, so that two runs over the same
    // keys do not wait for each other; judged in a statement of its own, which sees the run that held the locks before.
    sqlx::query!(
        r#"
        with mine as materialized (
            select i.item_id, i.source_topic, i.consumer_group, i.key
            from console.plan_item p
            join console.item i on i.item_id = p.item_id
            where p.plan_id = $1 and p.skipped is null
        ), keys as materialized (
            select distinct source_topic, consumer_group, key from mine where key is not null
        )
        select item_id
        from console.item
        where item_id in (
            select item_id from mine
            union
            select i.item_id
            from keys k
            join console.item i on i.key = k.key and i.source_topic = k.source_topic
                and i.consumer_group = k.consumer_group
            where i.state not in ('resolved', 'already_processed', 'archived'))
        order by item_id
        for update
        "#,
        plan,
    )
    .fetch_all(&mut *tx)
    .await?;
    let taken = sqlx::query!(
        r#"
        with keys as materialized (
            select distinct i.source_topic, i.consumer_group, i.key
            from console.plan_item p
            join console.item i on i.item_id = p.item_id
            where p.plan_id = $2 and p.skipped is null and i.key is not null
        ), behind as materialized (
            select item_id
            from (
                select i.item_id,
                    bool_or(case i.state
                        when 'sent' then i.sent_at >= clock_timestamp() - $4::interval
                        when 'planned' then exists (
                            select 1 from console.replay r where r.replay_id = i.replay_id and r.state = 'running')
                        else false
                    end) over (
                        partition by i.source_topic, i.consumer_group, i.key
                        order by i.origin_partition nulls last, i.origin_offset nulls last, i.first_dead_at, i.item_id
                        rows between unbounded preceding and 1 preceding
                    ) as is_behind
                from keys k
                join console.item i on i.key = k.key and i.source_topic = k.source_topic
                    and i.consumer_group = k.consumer_group
            ) placed
            where is_behind
        ), taken as (
            update console.item i
            set state = 'planned', replay_id = $1, sent_at = null, settled_at = null
            from console.plan_item p
            where p.plan_id = $2 and p.skipped is null and p.target_topic is not null
                and i.item_id = p.item_id
                and i.record_id = p.record_id
                and i.replays < $3
                and (i.state in ('open', 'failed_again')
                    or (i.state = 'sent' and i.sent_at < clock_timestamp() - $4::interval)
                    or (i.state = 'planned' and not exists (
                        select 1 from console.replay r where r.replay_id = i.replay_id and r.state = 'running')))
                and i.item_id not in (select item_id from behind)
            returning p.position, i.item_id, p.record_id, p.target_topic
        )
        insert into console.replay_item (replay_id, position, item_id, record_id, target_topic)
        select $1, t.position, t.item_id, t.record_id, t.target_topic
        from taken t
        "#,
        replay,
        plan,
        loop_cap,
        interval(outcome_timeout),
    )
    .execute(tx)
    .await?;
    Ok(i64::try_from(taken.rows_affected()).unwrap_or(i64::MAX))
}

/// The others, with what has happened to them since the plan.
pub(in crate::replays) async fn refuse_rest(
    tx: &mut PgConnection,
    replay: Uuid,
    plan: Uuid,
    loop_cap: i32,
) -> Result<i64, sqlx::Error> {
    let refused = sqlx::query!(
        r#"
        insert into console.replay_item (replay_id, position, item_id, record_id, target_topic, state, detail, settled_at)
        select $1, p.position, p.item_id, p.record_id, p.target_topic, 'refused',
            case
                when i.item_id is null then 'gone'
                when i.record_id <> p.record_id then 'died again since the plan'
                when i.state not in ('open', 'failed_again') then i.state
                when i.replays >= $3 then 'loop_cap'
                else 'an earlier letter of its key is in flight'
            end,
            clock_timestamp()
        from console.plan_item p
        left join console.item i on i.item_id = p.item_id
        where p.plan_id = $2 and p.skipped is null and p.target_topic is not null
            and not exists (
                select 1 from console.replay_item r where r.replay_id = $1 and r.item_id = p.item_id)
        "#,
        replay,
        plan,
        loop_cap,
    )
    .execute(tx)
    .await?;
    Ok(i64::try_from(refused.rows_affected()).unwrap_or(i64::MAX))
}

/// False when it does not run.
pub(in crate::replays) async fn request_cancel(tx: &mut PgConnection, id: Uuid) -> Result<bool, sqlx::Error> {
    let asked = sqlx::query!(
        r#"update console.replay set cancel_requested = true where replay_id = $1 and state = 'running'"#,
        id,
    )
    .execute(tx)
    .await?;
    Ok(asked.rows_affected() == 1)
}

#[derive(Debug)]
struct Row {
    replay_id: Uuid,
    plan_id: Uuid,
    state: String,
    reason: Option<String>,
    started_by: Uuid,
    started_at: DateTime<Utc>,
    finished_at: Option<DateTime<Utc>>,
    rate: i32,
    canary: i32,
    stop_after_failures: i32,
    takeovers: i32,
    cancel_requested: bool,
}

impl Row {
    fn view(self, progress: Progress) -> Replay {
        Replay {
            replay_id: self.replay_id,
            plan_id: self.plan_id,
            state: self.state,
            reason: self.reason,
            started_by: self.started_by,
            started_at: self.started_at,
            finished_at: self.finished_at,
            rate: self.rate,
            canary: self.canary,
            stop_after_failures: self.stop_after_failures,
            takeovers: self.takeovers,
            cancel_requested: self.cancel_requested,
            progress,
            troubles: Vec::new(),
        }
    }
}

/// A run, without its troubles.
pub(in crate::replays) async fn find(pool: &PgPool, id: Uuid) -> Result<Option<Replay>, sqlx::Error> {
    let row = sqlx::query_as!(
        Row,
        r#"
        select replay_id, plan_id, state, reason, started_by, started_at, finished_at, rate, canary, stop_after_failures,
            takeovers, cancel_requested
        from console.replay
        where replay_id = $1
        "#,
        id,
    )
    .fetch_optional(pool)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let progress = progress(pool, id).await?;
    Ok(Some(row.view(progress)))
}

/// The latest.
pub(in crate::replays) async fn list(pool: &PgPool) -> Result<Vec<Replay>, sqlx::Error> {
    let rows = sqlx::query_as!(
        Row,
        r#"
        select replay_id, plan_id, state, reason, started_by, started_at, finished_at, rate, canary, stop_after_failures,
            takeovers, cancel_requested
        from console.replay
        order by started_at desc, replay_id desc
        limit 50
        "#,
    )
    .fetch_all(pool)
    .await?;
    let mut replays = Vec::with_capacity(rows.len());
    for row in rows {
        let progress = progress(pool, row.replay_id).await?;
        replays.push(row.view(progress));
    }
    Ok(replays)
}

async fn progress(pool: &PgPool, id: Uuid) -> Result<Progress, sqlx::Error> {
    sqlx::query_as!(
        Progress,
        r#"
        select count(*) filter (where state = 'pending') as "pending!",
            count(*) filter (where state = 'sending') as "sending!",
            count(*) filter (where state = 'sent') as "sent!",
            count(*) filter (where state = 'resolved') as "resolved!",
            count(*) filter (where state = 'failed_again') as "failed_again!",
            count(*) filter (where state = 'already_processed') as "already_processed!",
            count(*) filter (where state = 'failed') as "failed!",
            count(*) filter (where state = 'refused') as "refused!",
            count(*) filter (where state = 'refused' and detail in ('resolved', 'already_processed', 'archived'))
                as "refused_settled!",
            count(*) filter (where state = 'stopped') as "stopped!",
            count(*) filter (where state = 'no_outcome') as "no_outcome!"
        from console.replay_item
        where replay_id = $1
        "#,
        id,
    )
    .fetch_one(pool)
    .await
}

/// The first letters that were not handled.
pub(in crate::replays) async fn troubles(pool: &PgPool, id: Uuid) -> Result<Vec<Trouble>, sqlx::Error> {
    sqlx::query_as!(
        Trouble,
        r#"
        select item_id, state, detail
        from console.replay_item
        where replay_id = $1 and state in ('failed_again', 'failed', 'refused', 'stopped', 'no_outcome')
        order by position
        limit 100
        "#,
        id,
    )
    .fetch_all(pool)
    .await
}
