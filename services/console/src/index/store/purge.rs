//! Forgetting what the topics have forgotten.

use sqlx::PgPool;

/// Rows of one step.
const STEP: i64 = 2_000;

/// Deletes items whose latest dead letter is past its topic's retention, with their records. Gives how many.
pub(in crate::index) async fn purge_items(pool: &PgPool) -> Result<u64, sqlx::Error> {
    let purged = sqlx::query!(
        r#"
        delete from console.item
        where item_id in (
            select i.item_id
            from console.dlt_topic d
            cross join lateral (
                select item_id from console.item
                where dlt_topic = d.dlt_topic
                    and dead_at < clock_timestamp() - make_interval(secs => d.retention_ms / 1000.0)
                    and state not in ('planned', 'sent')
                limit $1
            ) i
            where d.retention_ms is not null
            limit $1
        )
        "#,
        STEP,
    )
    .execute(pool)
    .await?;
    Ok(purged.rows_affected())
}

/// Deletes a step of what nothing points to any more: old outcomes, plans and runs, and groups without letters. Gives
/// how many. The audit stays.
pub(in crate::index) async fn purge_rest(pool: &PgPool) -> Result<u64, sqlx::Error> {
    let mut purged = 0;
    // Longer than any dead letter: a word that comes before its letter must still be there.
    purged += sqlx::query!(
        r#"
        delete from console.outcome where (item_id, replay_id) in (
            select item_id, replay_id from console.outcome
            where occurred_at < clock_timestamp() - interval '60 days' limit $1
        )
        "#,
        STEP,
    )
    .execute(pool)
    .await?
    .rows_affected();
    purged += sqlx::query!(
        r#"
        delete from console.replay where replay_id in (
            select replay_id from console.replay
            where state <> 'running' and started_at < clock_timestamp() - interval '60 days' limit 20
        )
        "#,
    )
    .execute(pool)
    .await?
    .rows_affected();
    purged += sqlx::query!(
        r#"
        delete from console.plan where plan_id in (
            select p.plan_id from console.plan p
            where p.made_at < clock_timestamp() - interval '7 days'
                and not exists (select 1 from console.replay r where r.plan_id = p.plan_id)
            limit 20
        )
        "#,
    )
    .execute(pool)
    .await?
    .rows_affected();
    purged += sqlx::query!(
        r#"
        delete from console.failure where failure_id in (
            select f.failure_id from console.failure f
            where f.last_seen < clock_timestamp() - interval '60 days'
                and not exists (select 1 from console.item i where i.failure_id = f.failure_id)
            limit $1
        )
        "#,
        STEP,
    )
    .execute(pool)
    .await?
    .rows_affected();
    Ok(purged)
}
