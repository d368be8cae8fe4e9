//! Groups of dead letters, and their arrivals by hour.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::FailureKey;

/// The groups' ids, new ones included.
pub(in crate::index) async fn add_failures(
    tx: &mut PgConnection,
    spans: &BTreeMap<FailureKey, (DateTime<Utc>, DateTime<Utc>)>,
) -> Result<BTreeMap<FailureKey, i64>, sqlx::Error> {
    let column = |of: fn(&FailureKey) -> &String| spans.keys().map(of).cloned().collect::<Vec<_>>();
    let first: Vec<_> = spans.values().map(|span| span.0).collect();
    let last: Vec<_> = spans.values().map(|span| span.1).collect();
    let rows = sqlx::query!(
        r#"
        insert into console.failure as f
            (dlt_topic, consumer_group, source_topic, error_code, error_class, event_type, first_seen, last_seen)
        select t.dlt_topic, t.consumer_group, t.source_topic, t.error_code, t.error_class, t.event_type, t.first, t.last
        from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::timestamptz[])
            as t (dlt_topic, consumer_group, source_topic, error_code, error_class, event_type, first, last)
        on conflict on constraint failure_identity_key do update set
            first_seen = least(f.first_seen, excluded.first_seen),
            last_seen = greatest(f.last_seen, excluded.last_seen)
        returning f.failure_id, f.dlt_topic, f.consumer_group, f.source_topic, f.error_code, f.error_class, f.event_type
        "#,
        &column(|key| &key.dlt_topic),
        &column(|key| &key.group),
        &column(|key| &key.source_topic),
        &column(|key| &key.error_code),
        &column(|key| &key.error_class),
        &column(|key| &key.event_type),
        &first,
        &last,
    )
    .fetch_all(tx)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let key = FailureKey {
                dlt_topic: row.dlt_topic,
                group: row.consumer_group,
                source_topic: row.source_topic,
                error_code: row.error_code,
                error_class: row.error_class,
                event_type: row.event_type,
            };
            (key, row.failure_id)
        })
        .collect())
}

/// Arrivals: group, hour since 1970, count.
pub(in crate::index) async fn add_hours(
    tx: &mut PgConnection,
    hours: &[(i64, i64, i64)],
) -> Result<(), sqlx::Error> {
    let failures: Vec<_> = hours.iter().map(|hour| hour.0).collect();
    let starts: Vec<_> = hours.iter().map(|hour| hour.1 * 3600).collect();
    let counts: Vec<_> = hours.iter().map(|hour| hour.2).collect();
    sqlx::query!(
        r#"
        insert into console.failure_hour as h (failure_id, hour, arrived)
        select t.failure_id, to_timestamp(t.start), t.arrived
        from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as t (failure_id, start, arrived)
        order by t.failure_id, t.start
        on conflict on constraint failure_hour_pkey do update set arrived = h.arrived + excluded.arrived
        "#,
        &failures,
        &starts,
        &counts,
    )
    .execute(tx)
    .await?;
    Ok(())
}
