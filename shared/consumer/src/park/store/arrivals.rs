//! What batches and replays do: ask for parked keys, open one, append to it.

use std::collections::HashMap;

use sqlx::{PgConnection, postgres::types::PgInterval};
use uuid::Uuid;

use crate::park::{
    headers,
    parcel::{Key, Parcel},
    parks::Opening,
};

/// Those of the keys that are parked, and the ids of their parks, which cannot end before this transaction does.
///
/// Sorted, so that all who lock several wait for each other in one direction only. Key by key, so that a plan that is
/// made before the table's first vacuum does not read all the keys of the topic later on.
pub(crate) async fn parked(
    tx: &mut PgConnection,
    group: &str,
    topic: &str,
    keys: &[Key],
) -> Result<HashMap<Key, i64>, sqlx::Error> {
    let bytes: Vec<&[u8]> = keys.iter().map(|key| &*key.bytes).collect();
    let rows = sqlx::query!(
        "select p.id, p.key, p.keyless
         from (select sha256(key) as hash from unnest($3::bytea[]) as key order by hash) given
         cross join lateral (
             select id, key, keyless from messaging.parked_key
             where consumer_group = $1 and topic = $2 and key_hash = given.hash
             order by keyless limit 2
             for key share) p",
        group,
        topic,
        &bytes as &[&[u8]],
    )
    .fetch_all(tx)
    .await?;
    Ok(rows.into_iter().map(|row| (Key { keyless: row.keyless, bytes: row.key }, row.id)).collect())
}

/// Parks keys that are not parked; returns how many were not. A conflict waits for the other transaction: then ask again.
pub(crate) async fn open(
    tx: &mut PgConnection,
    group: &str,
    topic: &str,
    openings: &[&(Parcel, Opening)],
) -> Result<u64, sqlx::Error> {
    let keys: Vec<&[u8]> = openings.iter().map(|(parcel, _)| &*parcel.key.bytes).collect();
    let keyless: Vec<bool> = openings.iter().map(|(parcel, _)| parcel.key.keyless).collect();
    let (attempts, due_ms): (Vec<i32>, Vec<i64>) = openings
        .iter()
        .map(|(_, opening)| match opening {
            Opening::Retry { attempts, due_in, failed: _ } => {
                (as_i32(*attempts), i64::try_from(due_in.as_millis()).unwrap_or(i64::MAX))
            }
            Opening::Dead(dead) => (as_i32(dead.attempt), 0),
        })
        .unzip();
    let opened = sqlx::query!(
        "with clock as materialized (select messaging.now() as now)
         insert into messaging.parked_key
             (consumer_group, topic, key, keyless, attempts, first_failed_at, due_at, parked_at)
         select $1, $2, g.key, g.keyless, g.attempts, case when g.attempts > 0 then clock.now end,
             clock.now + g.due_ms * interval '1 millisecond', clock.now
         from unnest($3::bytea[], $4::bool[], $5::int[], $6::bigint[]) as g(key, keyless, attempts, due_ms), clock
         order by sha256(g.key), g.keyless
         on conflict do nothing",
        group,
        topic,
        &keys as &[&[u8]],
        &keyless,
        &attempts,
        &due_ms,
    )
    .execute(tx)
    .await?;
    Ok(opened.rows_affected())
}

/// A message that has failed has joined a park which a replay opened meanwhile. It is the first there that is no replay,
/// and its attempts and its delay are the key's, as if it had opened the park.
pub(crate) async fn failed(
    tx: &mut PgConnection,
    key: i64,
    id: Uuid,
    attempts: u32,
    due_in: PgInterval,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "update messaging.parked_key k
         set attempts = $3, first_failed_at = messaging.now(), due_at = messaging.now() + $4::interval
         from messaging.parked_message m
         where k.id = $1 and k.attempts = 0 and m.parked_key_id = k.id and m.message_id = $2
           and m.replay_id is null and not exists (
               select from messaging.parked_message e
               where e.parked_key_id = k.id and e.replay_id is null and e.position < m.position)",
        key,
        id,
        as_i32(attempts),
        due_in,
    )
    .execute(tx)
    .await
    .map(drop)
}

/// Appends messages to the parks of their keys, in order. Returns how many were not there already.
pub(crate) async fn append(
    tx: &mut PgConnection,
    group: &str,
    rows: &[(i64, &Parcel)],
) -> Result<u64, sqlx::Error> {
    let rows: Vec<_> = rows.iter().map(|(key, parcel)| (*key, *parcel, None)).collect();
    insert(tx, group, &rows).await
}

/// The same for replays.
pub(crate) async fn append_replays(
    tx: &mut PgConnection,
    group: &str,
    rows: &[(i64, &Parcel, Uuid)],
) -> Result<u64, sqlx::Error> {
    let rows: Vec<_> = rows.iter().map(|(key, parcel, replay)| (*key, *parcel, Some(*replay))).collect();
    insert(tx, group, &rows).await
}

async fn insert(
    tx: &mut PgConnection,
    group: &str,
    rows: &[(i64, &Parcel, Option<Uuid>)],
) -> Result<u64, sqlx::Error> {
    let keys: Vec<i64> = rows.iter().map(|(key, ..)| *key).collect();
    let ids: Vec<Uuid> = rows.iter().map(|(_, parcel, _)| parcel.id.as_uuid()).collect();
    let replays: Vec<Option<Uuid>> = rows.iter().map(|(.., replay)| *replay).collect();
    let records = || rows.iter().map(|(_, parcel, _)| &parcel.record);
    let topics: Vec<&str> = records().map(|record| &*record.topic).collect();
    let partitions: Vec<i32> = records().map(|record| record.partition).collect();
    let offsets: Vec<i64> = records().map(|record| record.offset).collect();
    let timestamps: Vec<Option<i64>> = records().map(|record| record.timestamp_ms).collect();
    let values: Vec<Option<&[u8]>> = records().map(|record| record.value.as_deref()).collect();
    let headers: Vec<String> = records().map(|record| headers::write(record.headers())).collect();
    let appended = sqlx::query!(
        "with clock as materialized (select messaging.now() as now)
         insert into messaging.parked_message
             (parked_key_id, consumer_group, message_id, replay_id, read_from, record_partition, record_offset,
              record_timestamp_ms, value, headers, parked_at, due_at)
         select g.key, $1, g.id, g.replay, g.topic, g.partition, g.position, g.time, g.value, g.headers::json,
             clock.now, case when g.replay is not null then clock.now end
         from unnest($2::bigint[], $3::uuid[], $4::uuid[], $5::text[], $6::int[], $7::bigint[], $8::bigint[],
                     $9::bytea[], $10::text[])
             with ordinality as g(key, id, replay, topic, partition, position, time, value, headers, n), clock
         -- The position is drawn behind the sort.
         order by g.n
         on conflict do nothing",
        group,
        &keys,
        &ids,
        &replays as &[Option<Uuid>],
        &topics as &[&str],
        &partitions,
        &offsets,
        &timestamps as &[Option<i64>],
        &values as &[Option<&[u8]>],
        &headers,
    )
    .execute(tx)
    .await?;
    Ok(appended.rows_affected())
}

fn as_i32(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
