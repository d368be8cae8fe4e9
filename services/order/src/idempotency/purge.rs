//! Deletes keys that are past their lifetime, in bounded steps.

use sqlx::PgPool;
use waybill_service::jobs::Job;

use super::store;

/// Its name in `JOBS`.
pub const NAME: &str = "purge-idempotency-keys";
/// Keys of one statement, so that none holds many locks or makes much WAL at once.
pub const STEP: i64 = 1000;

/// The job, hourly. A key past its lifetime counts as new anyway: when the job is off, only the table grows.
pub(crate) fn job(pool: PgPool) -> Job {
    Job::purge(NAME, pool, async |pool| store::purge(&pool, STEP).await)
}
