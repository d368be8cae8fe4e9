//! How long the inbox remembers, and the purge of what it need not know any more.

use std::time::Duration;

use sqlx::{PgPool, postgres::types::PgInterval};

use crate::store;

const DAY: Duration = Duration::from_secs(86_400);
/// Rows deleted in one step of the purge, so that no transaction of it is long.
const STEP: i64 = 10_000;

/// How long rows of the inbox live.
///
/// A message whose id says that it is older than [`done`](Self::done) less one day is not handled but dead-lettered as
/// `stale`: its row may be gone, so nobody could tell whether it was handled. The day is the margin between the clocks
/// of who made the id and of the database. A replay (`waybill-replay-id`) is exempt, and so is an id without a time
/// (any but UUIDv7): a foreign producer's copy that comes after the horizon is handled again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// Of messages that were handled. At least the retention of the topic plus that of the outbox plus a day, else a
    /// replay of the log meets messages that are stale.
    pub done: Duration,
    /// Of messages that were dead-lettered, and of those replayed since. At least the retention of the dead-letter
    /// topic, else a dead letter could be replayed twice.
    pub dead: Duration,
}

impl Default for Horizon {
    fn default() -> Self {
        Self { done: DAY * 14, dead: DAY * 31 }
    }
}

impl Horizon {
    /// Why it cannot work.
    pub(crate) fn problem(self) -> Option<&'static str> {
        if self.done < DAY * 2 {
            Some("horizon.done must be at least two days: one of them is the margin")
        } else if self.dead < self.done {
            Some("horizon.dead must not be under horizon.done")
        } else {
            None
        }
    }

    /// Age from which on a message is stale.
    pub(crate) fn stale_after(self) -> PgInterval {
        interval(self.done.saturating_sub(DAY))
    }
}

/// Deletes rows beyond the horizon, at most 10,000 of them, and returns how many: one short step, by the database's
/// clock (`messaging.now()`). Call it again at once while it returns more than 0, and then hourly, from one instance:
///
/// ```no_run
/// # async fn example(pool: &sqlx::PgPool) -> Result<(), sqlx::Error> {
/// while waybill_consumer::purge(pool, waybill_consumer::Horizon::default()).await? > 0 {}
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The database failed; nothing of this step is deleted.
pub async fn purge(pool: &PgPool, horizon: Horizon) -> Result<u64, sqlx::Error> {
    let rows = store::purge(pool, interval(horizon.done), interval(horizon.dead), STEP).await?;
    Ok(rows + crate::crash::purge(pool, interval(horizon.done), STEP).await?)
}

/// Whole microseconds; days would be a day of the session's time zone.
fn interval(time: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(time.as_micros()).unwrap_or(i64::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_horizon_has_room_for_its_margin() {
        assert_eq!(Horizon::default().problem(), None);
        assert!(Horizon { done: DAY, ..Horizon::default() }.problem().is_some());
        assert!(Horizon { dead: DAY * 13, ..Horizon::default() }.problem().is_some());
        assert_eq!(Horizon::default().stale_after().microseconds, 13 * 86_400 * 1_000_000);
    }
}
