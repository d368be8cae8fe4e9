//! When a breaker opens and stops, how it probes, and what that bounds.

use std::time::Duration;

/// Settings of one subscription's [`Breaker`](super::Breaker).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Recent messages that are looked at. More: it opens later, and more is published before it does.
    pub window: usize,
    /// Messages among them that must have failed transiently at their first attempt, where failures are more than half.
    /// Fewer: a few bad messages of a quiet topic open it. Without them all of the window must have failed.
    pub least: usize,
    /// Time from the opening to the first probe; doubles with each failed one. Shorter: load on what is down.
    pub probe_min: Duration,
    /// Longest time between two probes, and so about how late a recovery is noticed.
    pub probe_max: Duration,
    /// Failed probes after which a message takes its normal way.
    pub probes: u32,
    /// Messages that fail for good in a row, none succeeding in between, at which the line stops. More: a bad
    /// deployment dead-letters more before it is noticed.
    pub permanent: usize,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            window: 20,
            least: 10,
            probe_min: Duration::from_millis(500),
            probe_max: Duration::from_secs(5),
            probes: 3,
            permanent: 50,
        }
    }
}

impl BreakerSettings {
    /// Why it cannot work.
    #[must_use]
    pub fn problem(&self) -> Option<&'static str> {
        if self.least == 0 || self.least > self.window {
            Some("breaker.least must be at least 1 and at most breaker.window")
        } else if self.probe_min.is_zero() || self.probe_max < self.probe_min {
            Some("breaker.probe_min must not be 0 nor over breaker.probe_max")
        } else if self.probes == 0 || self.permanent == 0 {
            Some("breaker.probes and breaker.permanent must not be 0")
        } else {
            None
        }
    }

    /// How many messages one process lets go at most, to the next tier or to the dead letters, while everything fails
    /// transiently for `outage`. With the defaults 19 until it opens (10, where all are at their first attempt), and one
    /// more per three failed probes: 27 in two minutes. So many dead letters at most can come of it, if each was at its last attempt.
    ///
    /// Messages, not records: one that fails in several tiers before the line opens is one. Holds per process and
    /// subscription, whatever runs in parallel; a process that starts again has a new breaker.
    #[must_use]
    pub fn bound(&self, outage: Duration) -> usize {
        // So many failures fill any window, whatever was in it before and whichever attempts they were; the last of them
        // is held.
        let opening = self.window - 1;
        opening + self.probes_within(outage) / self.probes as usize
    }

    fn probes_within(&self, outage: Duration) -> usize {
        if self.probe_max.is_zero() {
            return usize::MAX;
        }
        let (mut at, mut interval, mut probes) = (self.probe_min, self.probe_min, 0);
        while at <= outage {
            probes += 1;
            interval = (interval * 2).min(self.probe_max);
            at += interval;
        }
        probes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_minutes_let_twenty_seven_messages_go() {
        let settings = BreakerSettings::default();
        assert_eq!(settings.bound(Duration::ZERO), 19);
        // Probes at 0.5, 1.5, 3.5, 7.5 and then every 5 s: 26.
        assert_eq!(settings.bound(Duration::from_secs(120)), 19 + 26 / 3);
    }

    #[test]
    fn settings_that_cannot_open_or_close_are_refused() {
        assert_eq!(BreakerSettings::default().problem(), None);
        for wrong in [
            BreakerSettings { least: 21, ..BreakerSettings::default() },
            BreakerSettings { probe_min: Duration::ZERO, ..BreakerSettings::default() },
            BreakerSettings { permanent: 0, ..BreakerSettings::default() },
        ] {
            assert!(wrong.problem().is_some(), "{wrong:?}");
        }
    }
}
