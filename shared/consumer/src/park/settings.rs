//! Settings of a park.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;

use crate::{
    line::{JITTER_MAX, JITTER_SHARE},
    policy::{AfterDead, RetryPolicy},
};

/// Settings of the park of one subscription.
#[derive(Debug, Clone, PartialEq)]
pub struct ParkSettings {
    /// Attempts, their delays and the deadline.
    pub retry: RetryPolicy,
    /// After a dead letter.
    pub after_dead: AfterDead,
    /// Keys that this instance drains side by side, each with a connection of the pool while it is handled. Too few:
    /// keys wait for slow handlers of others; too many: the pool is empty for the batches.
    pub parallel: usize,
    /// Messages of one key handled in a row before others have their turn.
    pub turn: usize,
    /// Between two looks while something is parked: the lateness of a retry.
    pub poll: Duration,
    /// Between two looks while nothing is, unless woken up. The lateness of what another instance has parked last.
    pub idle_poll: Duration,
    /// How long a dead letter or the outcome of a replay may be under way before another instance publishes it too.
    /// More than the time limit of its delivery.
    pub lease: Duration,
    /// Parked keys from which on partitions pause.
    pub max_keys: i64,
    /// Parked messages from which on partitions pause. A batch that is under way may still exceed it by its size.
    pub max_rows: i64,
}

impl Default for ParkSettings {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            retry: RetryPolicy::default(),
            after_dead: AfterDead::default(),
            parallel: 4,
            turn: 50,
            poll: Duration::from_millis(100),
            idle_poll: seconds(1),
            lease: seconds(30),
            max_keys: 10_000,
            max_rows: 100_000,
        }
    }
}

impl ParkSettings {
    /// Why it cannot work.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        if self.parallel == 0 || self.turn == 0 {
            Some("park.parallel and park.turn must not be 0")
        } else if self.poll.is_zero() || self.idle_poll < self.poll {
            Some("park.poll must not be 0 nor over park.idle_poll")
        } else if self.max_keys < 1 || self.max_rows < 1 {
            Some("park.max_keys and park.max_rows must be at least 1")
        } else {
            None
        }
    }

    /// How long to wait after the given number of attempts; `None` when that was the last one. What failed together
    /// does not come back together, and never early.
    pub(crate) fn delay(&self, attempts: u32, since_first_failure: Duration) -> Option<Duration> {
        let delay = self.retry.delay(attempts, since_first_failure)?;
        Some(delay + rand::random_range(Duration::ZERO..=(delay / JITTER_SHARE).min(JITTER_MAX)))
    }
}

pub(super) fn interval(time: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(time.as_micros()).unwrap_or(i64::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_drain_are_refused() {
        assert_eq!(ParkSettings::default().problem(), None);
        for wrong in [
            ParkSettings { parallel: 0, ..ParkSettings::default() },
            ParkSettings { poll: Duration::ZERO, ..ParkSettings::default() },
            ParkSettings { max_rows: 0, ..ParkSettings::default() },
        ] {
            assert!(wrong.problem().is_some(), "{wrong:?}");
        }
    }

    #[test]
    fn the_delays_are_those_of_the_policy_and_a_little_more() {
        let settings = ParkSettings::default();
        for (attempts, seconds) in [(1, 1), (2, 10), (3, 60), (4, 600)] {
            let delay = settings.delay(attempts, Duration::ZERO).unwrap();
            let least = Duration::from_secs(seconds);
            assert!(delay >= least && delay <= least + (least / 10).min(JITTER_MAX), "{delay:?}");
        }
        assert_eq!(settings.delay(5, Duration::ZERO), None);
        assert_eq!(settings.delay(2, Duration::from_secs(1_800)), None);
    }
}
