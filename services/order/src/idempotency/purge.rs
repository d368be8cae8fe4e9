//! Deletes keys that are past their lifetime, in bounded steps.

use std::time::Duration;

use sqlx::PgPool;
use waybill_service::jobs::{Job, Run};

use super::store;

/// Its name in `JOBS`.
pub const NAME: &str = "purge-idempotency-keys";
/// Keys of one statement, so that none holds many locks or makes much WAL at once.
pub const STEP: i64 = 1000;
const EVERY: Duration = Duration::from_secs(3600);

/// The job, hourly. A key past its lifetime counts as new anyway: when the job is off, only the table grows.
pub(crate) fn job(pool: PgPool) -> Job {
    Job::new(NAME, EVERY, move |run| purge(pool.clone(), run))
}

async fn purge(pool: PgPool, run: Run) -> Result<u64, sqlx::Error> {
    let mut deleted = 0;
    while !run.is_stopped() {
        let step = store::purge(&pool, STEP).await?;
        deleted += step;
        if step < STEP.unsigned_abs() {
            break;
        }
    }
    Ok(deleted)
}
