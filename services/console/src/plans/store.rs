//! Every statement of plans.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::Error;
use super::judge::Candidate;
use super::make::Placed;
use super::view::{Plan, Summary};
use crate::State;

/// Of each key of these letters the first unsettled letter that is not among them, and the first that is in flight.
pub(super) async fn first_beside(
    db: &mut PgConnection,
    ids: &[Uuid],
    overdue: DateTime<Utc>,
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        with keys as materialized (
            select distinct source_topic, consumer_group, key
            from console.item
            where item_id = any($1) and key is not null
        ), beside as (
            select i.item_id, i.source_topic, i.consumer_group, i.key, i.origin_partition, i.origin_offset,
                i.first_dead_at,
                case i.state when 'planned' then coalesce(r.state = 'running', false)
                    when 'sent' then i.sent_at > $2 else false end as in_flight
            from keys k
            join console.item i on i.key = k.key and i.source_topic = k.source_topic
                and i.consumer_group = k.consumer_group
            left join console.replay r on i.state = 'planned' and r.replay_id = i.replay_id
            where i.state not in ('resolved', 'already_processed', 'archived') and i.item_id <> all($1)
        )
        select distinct on (source_topic, consumer_group, key, in_flight) item_id
        from beside
        order by source_topic, consumer_group, key, in_flight, origin_partition nulls last, origin_offset nulls last,
            first_dead_at, item_id
        "#,
        ids,
        overdue,
    )
    .fetch_all(db)
    .await
}

/// The letters of these ids in the order in which they lay in their source, key by key; `beside` were not asked for.
pub(super) async fn candidates(
    db: &mut PgConnection,
    ids: &[Uuid],
    beside: &[Uuid],
) -> Result<Vec<Candidate>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select i.item_id, i.record_id, i.state, coalesce(r.state = 'running', false) as "held!", i.sent_at, i.dlt_topic,
            i.consumer_group, i.source_topic, i.message_id, i.key, coalesce(i.value_bytes, 0) as "value_bytes!",
            i.value_left_out, i.headers_readable, i.replays, i.item_id <> all($2) as "chosen!"
        from console.item i
        left join console.replay r on i.state = 'planned' and r.replay_id = i.replay_id
        where i.item_id = any($1) or i.item_id = any($2)
        order by i.source_topic, i.consumer_group, i.origin_partition nulls last, i.origin_offset nulls last,
            i.first_dead_at, i.item_id
        "#,
        ids,
        beside,
    )
    .fetch_all(db)
    .await?;
    let candidate = rows.into_iter().map(|row| Candidate {
        chosen: row.chosen,
        item_id: row.item_id,
        record_id: row.record_id,
        state: State::named(&row.state).unwrap_or(State::Open),
        held: row.held,
        sent_at: row.sent_at,
        dlt_topic: row.dlt_topic,
        consumer_group: row.consumer_group,
        source_topic: row.source_topic,
        message_id: row.message_id,
        key: row.key,
        value_bytes: row.value_bytes,
        value_left_out: row.value_left_out,
        headers_readable: row.headers_readable,
        replays: row.replays,
    });
    Ok(candidate.collect())
}

/// Values by record.
pub(super) async fn values(
    pool: &PgPool,
    records: &[i64],
) -> Result<HashMap<i64, Option<Vec<u8>>>, sqlx::Error> {
    let rows =
        sqlx::query!(r#"select record_id, value from console.record where record_id = any($1)"#, records)
            .fetch_all(pool)
            .await?;
    Ok(rows.into_iter().map(|row| (row.record_id, row.value)).collect())
}

/// Keeps a plan.
pub(super) async fn insert(
    tx: &mut PgConnection,
    plan: &Plan,
    summary: &Summary,
    placed: &[Placed],
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        insert into console.plan (plan_id, made_by, made_at, filter, hash, ready, skipped, summary)
        values ($1, $2, $3, $4, $5, $6, $7, $8)
        "#,
        plan.plan_id,
        plan.made_by,
        plan.made_at,
        serde_json::to_value(&plan.request).unwrap_or_default(),
        plan.hash,
        i32::try_from(plan.ready).unwrap_or(i32::MAX),
        i32::try_from(plan.skipped).unwrap_or(i32::MAX),
        serde_json::to_value(summary).unwrap_or_default(),
    )
    .execute(&mut *tx)
    .await?;
    let positions: Vec<i32> = (0..placed.len()).map(|n| i32::try_from(n).unwrap_or(i32::MAX)).collect();
    let targets: Vec<Option<String>> = placed.iter().map(|letter| letter.target.clone()).collect();
    let skipped: Vec<Option<String>> =
        placed.iter().map(|letter| letter.skip.as_ref().map(|skip| skip.0.name().to_owned())).collect();
    let details: Vec<Option<String>> =
        placed.iter().map(|letter| letter.skip.as_ref().and_then(|skip| skip.1.clone())).collect();
    sqlx::query!(
        r#"
        insert into console.plan_item (plan_id, position, item_id, record_id, target_topic, skipped, detail)
        select $1, t.position, t.item_id, t.record_id, t.target_topic, t.skipped, t.detail
        from unnest($2::int[], $3::uuid[], $4::bigint[], $5::text[], $6::text[], $7::text[])
            as t (position, item_id, record_id, target_topic, skipped, detail)
        "#,
        plan.plan_id,
        &positions,
        &placed.iter().map(|letter| letter.item_id).collect::<Vec<_>>(),
        &placed.iter().map(|letter| letter.record_id).collect::<Vec<_>>(),
        &targets as &[Option<String>],
        &skipped as &[Option<String>],
        &details as &[Option<String>],
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// A plan as it was made.
pub(crate) async fn load(db: &mut PgConnection, id: Uuid) -> Result<Plan, Error> {
    let row = sqlx::query!(
        r#"
        select plan_id, made_by, made_at, filter, hash, ready, skipped, summary
        from console.plan
        where plan_id = $1
        "#,
        id,
    )
    .fetch_optional(db)
    .await?
    .ok_or(Error::NotFound)?;
    let summary: Summary = read(row.summary)?;
    Ok(Plan {
        plan_id: row.plan_id,
        made_at: row.made_at,
        made_by: row.made_by,
        request: read(row.filter)?,
        hash: row.hash,
        ready: row.ready.into(),
        skipped: row.skipped.into(),
        matched: summary.matched,
        reconcile_first: summary.reconcile_first,
        targets: summary.targets,
        skipped_items: summary.skipped_items,
    })
}

fn read<T: serde::de::DeserializeOwned>(json: Value) -> Result<T, Error> {
    serde_json::from_value(json).map_err(|error| Error::Database(sqlx::Error::Decode(Box::new(error))))
}
