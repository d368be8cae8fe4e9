//! Records, as they lie on their topics.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Error, NewRecord};
use crate::index::batch::Batch;
use crate::index::record::{millis, to_json};

type Place = (String, i32, i64, DateTime<Utc>);

/// Which of the batch's records are in the index.
pub(in crate::index) async fn known_places(
    tx: &mut PgConnection,
    batch: &Batch,
) -> Result<HashSet<Place>, sqlx::Error> {
    let raws = || batch.letters.iter().map(|(raw, _)| raw);
    let topics: Vec<String> = raws().map(|raw| raw.topic.clone()).collect();
    let partitions: Vec<i32> = raws().map(|raw| raw.partition).collect();
    let offsets: Vec<i64> = raws().map(|raw| raw.offset).collect();
    let rows = sqlx::query!(
        r#"
        select r.dlt_topic, r.dlt_partition, r.dlt_offset, r.dead_at
        from unnest($1::text[], $2::int[], $3::bigint[]) as p (topic, partition, "offset")
        join console.record r
            on r.dlt_topic = p.topic and r.dlt_partition = p.partition and r.dlt_offset = p."offset"
        "#,
        &topics,
        &partitions,
        &offsets,
    )
    .fetch_all(tx)
    .await?;
    Ok(rows.into_iter().map(|row| (row.dlt_topic, row.dlt_partition, row.dlt_offset, row.dead_at)).collect())
}

/// Numbers for new records, drawn before the rows: items and records name each other.
pub(in crate::index) async fn draw_ids(tx: &mut PgConnection, count: usize) -> Result<Vec<i64>, sqlx::Error> {
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    sqlx::query_scalar!(
        r#"
        select nextval(pg_get_serial_sequence('console.record', 'record_id')) as "id!"
        from generate_series(1, $1)
        "#,
        count
    )
    .fetch_all(tx)
    .await
}

/// The records themselves.
pub(in crate::index) async fn insert_records(
    tx: &mut PgConnection,
    records: &[NewRecord<'_>],
) -> Result<(), Error> {
    if records.is_empty() {
        return Ok(());
    }
    let raws = || records.iter().map(|record| record.raw);
    let letters = || records.iter().map(|record| record.letter);
    let messages: Vec<Option<String>> = letters().map(|letter| letter.error_message.clone()).collect();
    let attempts: Vec<Option<i32>> = letters().map(|letter| letter.attempts).collect();
    let replay_ids: Vec<Option<Uuid>> = letters().map(|letter| letter.replay_id).collect();
    let origin_topics: Vec<Option<String>> = letters().map(|letter| letter.origin.topic.clone()).collect();
    let origin_partitions: Vec<Option<i32>> = letters().map(|letter| letter.origin.partition).collect();
    let origin_offsets: Vec<Option<i64>> = letters().map(|letter| letter.origin.offset).collect();
    let origin_times: Vec<Option<DateTime<Utc>>> =
        letters().map(|letter| letter.origin.timestamp_ms.and_then(millis)).collect();
    let keys: Vec<Option<&[u8]>> = raws().map(|raw| raw.key.as_deref()).collect();
    let values: Vec<Option<&[u8]>> = raws().map(|raw| raw.value.as_deref()).collect();
    let headers: Vec<Value> = raws().map(|raw| to_json(&raw.headers)).collect();
    let inserted = sqlx::query!(
        r#"
        insert into console.record
            (record_id, item_id, dlt_topic, dlt_partition, dlt_offset, dead_at, dialect, failed_at, error_code, error_class,
            error_message, attempts, replay_id, origin_topic, origin_partition, origin_offset, origin_timestamp, key, value,
            headers)
        select t.record_id, t.item_id, t.dlt_topic, t.dlt_partition, t.dlt_offset, t.dead_at, t.dialect, t.failed_at,
            t.error_code, t.error_class, t.error_message, t.attempts, t.replay_id, t.origin_topic, t.origin_partition,
            t.origin_offset, t.origin_timestamp, t.key, t.value, t.headers
        from unnest($1::bigint[], $2::uuid[], $3::text[], $4::int[], $5::bigint[], $6::timestamptz[], $7::text[],
            $8::timestamptz[], $9::text[], $10::text[], $11::text[], $12::int[], $13::uuid[], $14::text[], $15::int[],
            $16::bigint[], $17::timestamptz[], $18::bytea[], $19::bytea[], $20::json[])
            as t (record_id, item_id, dlt_topic, dlt_partition, dlt_offset, dead_at, dialect, failed_at, error_code,
            error_class, error_message, attempts, replay_id, origin_topic, origin_partition, origin_offset,
            origin_timestamp, key, value, headers)
        on conflict on constraint record_place_key do nothing
        "#,
        &records.iter().map(|record| record.record_id).collect::<Vec<_>>(),
        &letters().map(|letter| letter.item_id).collect::<Vec<_>>(),
        &raws().map(|raw| raw.topic.clone()).collect::<Vec<_>>(),
        &raws().map(|raw| raw.partition).collect::<Vec<_>>(),
        &raws().map(|raw| raw.offset).collect::<Vec<_>>(),
        &raws().map(|raw| raw.timestamp).collect::<Vec<_>>(),
        &letters().map(|letter| letter.dialect.name().to_owned()).collect::<Vec<_>>(),
        &letters().map(|letter| letter.failed_at).collect::<Vec<_>>(),
        &letters().map(|letter| letter.error_code.clone()).collect::<Vec<_>>(),
        &letters().map(|letter| letter.error_class.clone()).collect::<Vec<_>>(),
        &messages as &[Option<String>],
        &attempts as &[Option<i32>],
        &replay_ids as &[Option<Uuid>],
        &origin_topics as &[Option<String>],
        &origin_partitions as &[Option<i32>],
        &origin_offsets as &[Option<i64>],
        &origin_times as &[Option<DateTime<Utc>>],
        &keys as &[Option<&[u8]>],
        &values as &[Option<&[u8]>],
        &headers,
    )
    .execute(tx)
    .await?;
    if inserted.rows_affected() == records.len() as u64 { Ok(()) } else { Err(Error::Raced) }
}
