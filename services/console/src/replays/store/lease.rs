//! Who drives a run.

use std::time::Duration;

use sqlx::PgPool;
use uuid::Uuid;

use super::interval;

/// A run that this process drives from now on.
#[derive(Debug, Clone)]
pub(in crate::replays) struct Claimed {
    pub(in crate::replays) replay_id: Uuid,
    pub(in crate::replays) started_by: Uuid,
    pub(in crate::replays) rate: i32,
    pub(in crate::replays) canary: i32,
    pub(in crate::replays) stop_after_failures: i32,
    /// Somebody has asked it to stop.
    pub(in crate::replays) cancel_requested: bool,
}

/// Takes one run whose lease has run out; a new one has none.
pub(in crate::replays) async fn claim(
    pool: &PgPool,
    owner: Uuid,
    lease: Duration,
) -> Result<Option<Claimed>, sqlx::Error> {
    sqlx::query_as!(
        Claimed,
        r#"
        update console.replay
        set takeovers = takeovers + (owner is not null)::int,
            owner = $1,
            lease_until = clock_timestamp() + $2::interval
        where replay_id = (
            select replay_id from console.replay
            where state = 'running' and lease_until < clock_timestamp()
            order by started_at
            limit 1
            for update skip locked
        )
        returning replay_id, started_by, rate, canary, stop_after_failures, cancel_requested
        "#,
        owner,
        interval(lease),
    )
    .fetch_optional(pool)
    .await
}

/// Whether a run is still this process's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::replays) enum Held {
    Yes,
    /// Somebody has asked it to stop.
    Cancelled,
    No,
}

/// Prolongs the lease while it is held.
pub(in crate::replays) async fn renew(
    pool: &PgPool,
    replay: Uuid,
    owner: Uuid,
    lease: Duration,
) -> Result<Held, sqlx::Error> {
    let cancelled = sqlx::query_scalar!(
        r#"
        update console.replay
        set lease_until = clock_timestamp() + $3::interval
        where replay_id = $1 and owner = $2 and state = 'running' and lease_until > clock_timestamp()
        returning cancel_requested
        "#,
        replay,
        owner,
        interval(lease),
    )
    .fetch_optional(pool)
    .await?;
    Ok(match cancelled {
        None => Held::No,
        Some(true) => Held::Cancelled,
        Some(false) => Held::Yes,
    })
}

/// Gives the run back, so that another process need not wait for the lease.
pub(in crate::replays) async fn let_go(pool: &PgPool, replay: Uuid, owner: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        update console.replay
        set lease_until = '-infinity', owner = null
        where replay_id = $1 and owner = $2
        "#,
        replay,
        owner,
    )
    .execute(pool)
    .await?;
    Ok(())
}
