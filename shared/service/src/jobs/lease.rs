//! Every statement of jobs. All times are the database's, so clocks of instances do not matter.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use sqlx::postgres::types::PgInterval;

/// Takes the lease of a job that is due and whose lease has run out. False when another instance has it, or when the
/// last success is younger than `every`.
pub(super) async fn claim(
    pool: &PgPool,
    job: &str,
    owner: &str,
    lease: Duration,
    every: Duration,
) -> Result<bool, sqlx::Error> {
    let claimed = sqlx::query!(
        r#"
        insert into messaging.job_lease as l (job, owner, expires_at)
        values ($1, $2, messaging.now() + $3)
        on conflict on constraint job_lease_pkey do update set
            owner = excluded.owner,
            expires_at = excluded.expires_at
        where l.expires_at <= messaging.now()
            and (l.last_success_at is null or l.last_success_at + $4 <= messaging.now())
        returning l.job
        "#,
        job,
        owner,
        interval(lease),
        interval(every),
    )
    .fetch_optional(pool)
    .await?;
    Ok(claimed.is_some())
}

/// Prolongs a lease that is still held; false when it is not.
pub(super) async fn renew(
    pool: &PgPool,
    job: &str,
    owner: &str,
    lease: Duration,
) -> Result<bool, sqlx::Error> {
    let renewed = sqlx::query!(
        r#"
        update messaging.job_lease
        set expires_at = messaging.now() + $3
        where job = $1 and owner = $2 and expires_at > messaging.now()
        "#,
        job,
        owner,
        interval(lease),
    )
    .execute(pool)
    .await?;
    Ok(renewed.rows_affected() == 1)
}

/// Gives the lease back after a run: with the time of its success, or so that nobody tries again before `pause`.
pub(super) async fn release(
    pool: &PgPool,
    job: &str,
    owner: &str,
    succeeded: bool,
    pause: Duration,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        update messaging.job_lease
        set owner = null,
            expires_at = case when $3 then '-infinity' else messaging.now() + $4 end,
            last_success_at = case when $3 then messaging.now() else last_success_at end
        where job = $1 and owner = $2
        "#,
        job,
        owner,
        succeeded,
        interval(pause),
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// When the job last succeeded, on whichever instance.
pub(super) async fn last_success(pool: &PgPool, job: &str) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    let row = sqlx::query_scalar!(r#"select last_success_at from messaging.job_lease where job = $1"#, job)
        .fetch_optional(pool)
        .await?;
    Ok(row.flatten())
}

fn interval(duration: Duration) -> PgInterval {
    let microseconds = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    PgInterval { months: 0, days: 0, microseconds }
}
