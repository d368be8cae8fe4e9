//! What the broker says of dead-letter topics.

use sqlx::PgPool;

/// What the broker says of its dead-letter topics; topics that are gone are forgotten.
pub(in crate::index) async fn put_topics(
    pool: &PgPool,
    topics: &[(String, i32, Option<i64>)],
) -> Result<(), sqlx::Error> {
    let names: Vec<_> = topics.iter().map(|topic| topic.0.clone()).collect();
    let partitions: Vec<_> = topics.iter().map(|topic| topic.1).collect();
    let retention: Vec<Option<i64>> = topics.iter().map(|topic| topic.2).collect();
    let mut tx = waybill_service::postgres::begin(pool).await?;
    sqlx::query!(
        r#"
        insert into console.dlt_topic as d (dlt_topic, partitions, retention_ms, checked_at)
        select t.dlt_topic, t.partitions, t.retention_ms, clock_timestamp()
        from unnest($1::text[], $2::int[], $3::bigint[]) as t (dlt_topic, partitions, retention_ms)
        order by t.dlt_topic
        on conflict on constraint dlt_topic_pkey do update set
            partitions = excluded.partitions,
            retention_ms = excluded.retention_ms,
            checked_at = excluded.checked_at
        "#,
        &names,
        &partitions,
        &retention as &[Option<i64>],
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(r#"delete from console.dlt_topic where dlt_topic <> all($1)"#, &names)
        .execute(&mut *tx)
        .await?;
    tx.commit().await
}
