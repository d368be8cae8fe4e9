//! Items: locked, made, changed.

use std::collections::HashMap;

use sqlx::PgConnection;
use uuid::Uuid;

use super::{Error, ItemRow};
use crate::State;
use crate::index::merge::{Death, Standing};

/// The items that are known already, locked.
pub(in crate::index) async fn lock_items<'a>(
    tx: &mut PgConnection,
    ids: &[Uuid],
) -> Result<HashMap<Uuid, ItemRow<'a>>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select item_id, failure_id, record_id, state, failed_at, first_dead_at, deaths, replays, died_in,
            died_replays, replay_id
        from console.item
        where item_id = any($1)
        order by item_id
        for update
        "#,
        ids,
    )
    .fetch_all(tx)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let death = Death { replays: row.died_replays, failed_at: row.failed_at, replay_id: row.died_in };
            let state = State::named(&row.state).unwrap_or(State::Open);
            let item = ItemRow {
                item_id: row.item_id,
                is_new: false,
                changed: false,
                standing: Standing { state, replay_id: row.replay_id, death },
                failure_id: row.failure_id,
                record_id: row.record_id,
                deaths: row.deaths,
                replays: row.replays,
                first_dead_at: row.first_dead_at,
                source: None,
            };
            (row.item_id, item)
        })
        .collect())
}

/// New items, whole.
pub(in crate::index) async fn insert_items(
    tx: &mut PgConnection,
    items: &[&ItemRow<'_>],
) -> Result<(), Error> {
    let items: Vec<_> =
        items.iter().filter_map(|item| item.source.map(|(raw, letter)| (item, raw, letter))).collect();
    if items.is_empty() {
        return Ok(());
    }
    let keys: Vec<Option<Vec<u8>>> = items.iter().map(|(_, raw, _)| raw.key.clone()).collect();
    let trace_ids: Vec<Option<String>> = items.iter().map(|(.., letter)| letter.trace_id.clone()).collect();
    let attempts: Vec<Option<i32>> = items.iter().map(|(.., letter)| letter.attempts).collect();
    let partitions: Vec<Option<i32>> = items.iter().map(|(.., letter)| letter.origin.partition).collect();
    let offsets: Vec<Option<i64>> = items.iter().map(|(.., letter)| letter.origin.offset).collect();
    let sizes: Vec<Option<i32>> = items.iter().map(|(_, raw, _)| raw.value_bytes()).collect();
    let died_in: Vec<Option<Uuid>> = items.iter().map(|(item, ..)| item.standing.death.replay_id).collect();
    let inserted = sqlx::query!(
        r#"
        insert into console.item
            (item_id, failure_id, consumer_group, source_topic, message_id, state, record_id, dlt_topic, key, trace_id,
            attempts, dead_at, first_dead_at, failed_at, origin_partition, origin_offset, value_bytes, value_left_out,
            headers_readable, deaths, replays, died_in, died_replays)
        select t.item_id, t.failure_id, t.consumer_group, t.source_topic, t.message_id, t.state, t.record_id, t.dlt_topic,
            t.key, t.trace_id, t.attempts, t.dead_at, t.first_dead_at, t.failed_at, t.origin_partition, t.origin_offset,
            t.value_bytes, t.value_left_out, t.headers_readable, t.deaths, t.replays, t.died_in, t.died_replays
        from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::uuid[], $6::text[], $7::bigint[], $8::text[],
            $9::bytea[], $10::text[], $11::int[], $12::timestamptz[], $13::timestamptz[], $14::timestamptz[], $15::int[],
            $16::bigint[], $17::int[], $18::bool[], $19::bool[], $20::int[], $21::int[], $22::uuid[], $23::int[])
            as t (item_id, failure_id, consumer_group, source_topic, message_id, state, record_id, dlt_topic, key, trace_id,
            attempts, dead_at, first_dead_at, failed_at, origin_partition, origin_offset, value_bytes, value_left_out,
            headers_readable, deaths, replays, died_in, died_replays)
        on conflict on constraint item_pkey do nothing
        "#,
        &items.iter().map(|(item, ..)| item.item_id).collect::<Vec<_>>(),
        &items.iter().map(|(item, ..)| item.failure_id).collect::<Vec<_>>(),
        &items.iter().map(|(.., letter)| letter.group.clone()).collect::<Vec<_>>(),
        &items.iter().map(|(.., letter)| letter.source_topic.clone()).collect::<Vec<_>>(),
        &items.iter().map(|(.., letter)| letter.message_id).collect::<Vec<_>>(),
        &items.iter().map(|(item, ..)| item.standing.state.name().to_owned()).collect::<Vec<_>>(),
        &items.iter().map(|(item, ..)| item.record_id).collect::<Vec<_>>(),
        &items.iter().map(|(_, raw, _)| raw.topic.clone()).collect::<Vec<_>>(),
        &keys as &[Option<Vec<u8>>],
        &trace_ids as &[Option<String>],
        &attempts as &[Option<i32>],
        &items.iter().map(|(_, raw, _)| raw.timestamp).collect::<Vec<_>>(),
        &items.iter().map(|(item, ..)| item.first_dead_at).collect::<Vec<_>>(),
        &items.iter().map(|(.., letter)| letter.failed_at).collect::<Vec<_>>(),
        &partitions as &[Option<i32>],
        &offsets as &[Option<i64>],
        &sizes as &[Option<i32>],
        &items.iter().map(|(.., letter)| letter.value_left_out).collect::<Vec<_>>(),
        &items.iter().map(|(_, raw, _)| raw.is_readable()).collect::<Vec<_>>(),
        &items.iter().map(|(item, ..)| item.deaths).collect::<Vec<_>>(),
        &items.iter().map(|(item, ..)| item.replays).collect::<Vec<_>>(),
        &died_in as &[Option<Uuid>],
        &items.iter().map(|(item, ..)| item.standing.death.replays).collect::<Vec<_>>(),
    )
    .execute(tx)
    .await?;
    if inserted.rows_affected() == items.len() as u64 { Ok(()) } else { Err(Error::Raced) }
}

/// Items that were known, with what the batch made of them.
pub(in crate::index) async fn update_items(
    tx: &mut PgConnection,
    items: &[&ItemRow<'_>],
) -> Result<(), sqlx::Error> {
    if items.is_empty() {
        return Ok(());
    }
    let died_in: Vec<Option<Uuid>> = items.iter().map(|item| item.standing.death.replay_id).collect();
    let left_out: Vec<Option<bool>> =
        items.iter().map(|item| item.source.map(|(_, letter)| letter.value_left_out)).collect();
    let readable: Vec<Option<bool>> =
        items.iter().map(|item| item.source.map(|(raw, _)| raw.is_readable())).collect();
    // Attributes are those of the latest dead letter, which is in its table by now.
    sqlx::query!(
        r#"
        with changed as (
            select item_id, state, failure_id, record_id, failed_at, first_dead_at, deaths, replays, died_in, died_replays,
                left_out, readable
            from unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::timestamptz[], $7::int[],
                $8::int[], $9::uuid[], $10::int[], $11::bool[], $12::bool[])
                as t (item_id, state, failure_id, record_id, failed_at, first_dead_at, deaths, replays, died_in,
                died_replays, left_out, readable)
        )
        update console.item i
        set state = c.state,
            failure_id = c.failure_id,
            record_id = c.record_id,
            failed_at = c.failed_at,
            first_dead_at = c.first_dead_at,
            deaths = c.deaths,
            replays = greatest(i.replays, c.replays),
            died_in = c.died_in,
            died_replays = c.died_replays,
            settled_at = case
                when c.state in ('open', 'planned', 'sent') then null
                when c.state = i.state then i.settled_at
                else clock_timestamp()
            end,
            dlt_topic = coalesce(r.dlt_topic, i.dlt_topic),
            dead_at = coalesce(r.dead_at, i.dead_at),
            attempts = case when r.record_id is null then i.attempts else r.attempts end,
            value_bytes = case when r.record_id is null then i.value_bytes else octet_length(r.value) end,
            value_left_out = coalesce(c.left_out, i.value_left_out),
            headers_readable = coalesce(c.readable, i.headers_readable)
        from changed c
        left join console.record r on r.record_id = c.record_id
        where i.item_id = c.item_id
        "#,
        &items.iter().map(|item| item.item_id).collect::<Vec<_>>(),
        &items.iter().map(|item| item.standing.state.name().to_owned()).collect::<Vec<_>>(),
        &items.iter().map(|item| item.failure_id).collect::<Vec<_>>(),
        &items.iter().map(|item| item.record_id).collect::<Vec<_>>(),
        &items.iter().map(|item| item.standing.death.failed_at).collect::<Vec<_>>(),
        &items.iter().map(|item| item.first_dead_at).collect::<Vec<_>>(),
        &items.iter().map(|item| item.deaths).collect::<Vec<_>>(),
        &items.iter().map(|item| item.replays).collect::<Vec<_>>(),
        &died_in as &[Option<Uuid>],
        &items.iter().map(|item| item.standing.death.replays).collect::<Vec<_>>(),
        &left_out as &[Option<bool>],
        &readable as &[Option<bool>],
    )
    .execute(tx)
    .await?;
    Ok(())
}
