//! What operators and gauges ask.

use sqlx::PgPool;

use crate::park::operate::{ParkedGauge, ParkedKey};

/// Whether so many keys or messages are parked. Counts no further than that.
pub(crate) async fn full(
    pool: &PgPool,
    group: &str,
    topic: &str,
    max_keys: i64,
    max_rows: i64,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"select (select count(*) from (
                 select from messaging.parked_key k where k.consumer_group = $1 and k.topic = $2 limit $3) c) >= $3
             or (select count(*) from (
                 select from messaging.parked_key k
                 join messaging.parked_message m on m.parked_key_id = k.id
                 where k.consumer_group = $1 and k.topic = $2 limit $4) c) >= $4 as "full!""#,
        group,
        topic,
        max_keys,
        max_rows,
    )
    .fetch_one(pool)
    .await
}

pub(crate) async fn gauge(pool: &PgPool, group: &str, topic: &str) -> Result<ParkedGauge, sqlx::Error> {
    sqlx::query_as!(
        ParkedGauge,
        r#"select count(*) as "keys!", count(*) filter (where k.state = 'blocked') as "blocked!",
             (select count(*) from messaging.parked_key o
                 join messaging.parked_message m on m.parked_key_id = o.id
                 where o.consumer_group = $1 and o.topic = $2) as "messages!",
             coalesce(extract(epoch from messaging.now() - min(k.parked_at)), 0)::float8 as "oldest_seconds!"
         from messaging.parked_key k
         where k.consumer_group = $1 and k.topic = $2"#,
        group,
        topic,
    )
    .fetch_one(pool)
    .await
}

pub(crate) async fn list(
    pool: &PgPool,
    group: Option<&str>,
    topic: Option<&str>,
    limit: i64,
    after: i64,
) -> Result<Vec<ParkedKey>, sqlx::Error> {
    sqlx::query_as!(
        ParkedKey,
        r#"select k.id, k.consumer_group, k.topic, k.key, k.keyless, k.state, k.attempts, k.due_at, k.parked_at,
             (select count(*) from messaging.parked_message m where m.parked_key_id = k.id) as "messages!",
             head.message_id as "head?", head.error_code as "error_code?"
         from messaging.parked_key k
         left join lateral (
             select m.message_id, m.error_code from messaging.parked_message m
             where m.parked_key_id = k.id and m.outcome is null
             order by (m.replay_id is null), m.position
             limit 1
         ) head on true
         where ($1::text is null or k.consumer_group = $1) and ($2::text is null or k.topic = $2) and k.id > $4
         order by k.id
         limit $3"#,
        group,
        topic,
        limit,
        after,
    )
    .fetch_all(pool)
    .await
}

pub(crate) async fn release(
    pool: &PgPool,
    group: &str,
    topic: &str,
    key: &[u8],
    keyless: bool,
) -> Result<bool, sqlx::Error> {
    let released = sqlx::query!(
        "update messaging.parked_key set state = 'waiting', due_at = messaging.now()
         where consumer_group = $1 and topic = $2 and key_hash = sha256($3) and keyless = $4 and state = 'blocked'",
        group,
        topic,
        key,
        keyless,
    )
    .execute(pool)
    .await?;
    Ok(released.rows_affected() == 1)
}
