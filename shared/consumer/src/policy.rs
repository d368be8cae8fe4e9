//! What a subscription does with a message that cannot be handled now: order, retry topics, replay safety.

use std::time::Duration;

use crate::Error;

/// Most retry tiers of a subscription: each is a topic with as many partitions as the source.
const MAX_TIERS: usize = 10;

/// Delays between attempts, and when to give up.
///
/// A message has one attempt more than there are tiers; the next one is never begun before its delay, counted from
/// the failure. Whatever comes first ends it as a dead letter: the last attempt, or the deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Delay before the second, third, … attempt. With [`Subscription::retry`](crate::Subscription::retry) each is a
    /// topic of its own, with the delay in its name: whole milliseconds, none twice.
    pub tiers: Vec<Duration>,
    /// No attempt is begun later than this after the first failure.
    pub deadline: Duration,
}

impl Default for RetryPolicy {
    /// 1 s, 10 s, 1 min, 10 min; 30 min.
    fn default() -> Self {
        let tiers = [1, 10, 60, 600].map(Duration::from_secs).to_vec();
        Self { tiers, deadline: Duration::from_secs(30 * 60) }
    }
}

impl RetryPolicy {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |problem: String| Err(Error::Setting(format!("retry: {problem}")));
        if self.tiers.len() > MAX_TIERS {
            return wrong(format!("{} tiers, the most are {MAX_TIERS}", self.tiers.len()));
        }
        for (index, tier) in self.tiers.iter().enumerate() {
            if tier.is_zero() || tier.subsec_nanos() % 1_000_000 != 0 {
                return wrong(format!("tier {tier:?} is not a whole number of milliseconds"));
            }
            if self.tiers[..index].contains(tier) {
                return wrong(format!("tier {} is there twice", delay_name(*tier)));
            }
        }
        if self.deadline.is_zero() {
            return wrong("the deadline must not be 0".to_owned());
        }
        Ok(())
    }

    /// The delay after this many attempts, when another one is due before the deadline.
    pub(crate) fn delay(&self, attempts: u32, since_first_failure: Duration) -> Option<Duration> {
        let tier = usize::try_from(attempts).ok()?.checked_sub(1)?;
        let delay = *self.tiers.get(tier)?;
        (since_first_failure + delay <= self.deadline).then_some(delay)
    }
}

/// Which messages may pass one that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    /// None of its partition: it is tried again in place.
    Partition,
    /// Every other: it goes through the retry topics.
    None(RetryPolicy),
    /// Those of other keys: its key is parked in the database.
    Key(RetryPolicy, AfterDead),
}

impl Order {
    /// As operators see it.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Partition => "partition_ordered",
            Self::None(_) => "unordered",
            Self::Key(..) => "key_ordered",
        }
    }

    pub(crate) const fn policy(&self) -> Option<&RetryPolicy> {
        match self {
            Self::Partition => None,
            Self::None(policy) | Self::Key(policy, _) => Some(policy),
        }
    }
}

/// What becomes of a key whose message was dead-lettered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterDead {
    /// The messages behind it are handled.
    #[default]
    Continue,
    /// The key stays parked until an operator releases it.
    Block,
}

/// Whether an operator may replay a group's dead letters, shown beside the button.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplaySafety {
    /// At any time.
    #[default]
    Safe,
    /// Only after looking at what the group has done since.
    ReconcileFirst,
    /// Never: the consumer refuses replays, they come back as dead letters with the code `replay_refused`.
    Never,
}

impl ReplaySafety {
    /// As operators see it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::ReconcileFirst => "reconcile_first",
            Self::Never => "never",
        }
    }
}

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// A delay as in the name of its topic: a whole number of the largest unit that fits, `ms`, `s`, `m`, `h` or `d`.
pub(crate) fn delay_name(delay: Duration) -> String {
    let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    let fits = |(_, unit): &&(&str, u64)| millis.is_multiple_of(*unit) && millis >= *unit;
    let (name, unit) = UNITS.iter().find(fits).copied().unwrap_or(("ms", 1));
    format!("{}{name}", millis / unit)
}

/// The delay of a topic's name, also one that is no longer configured.
pub(crate) fn parse_delay(name: &str) -> Option<Duration> {
    let digits = name.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = name.split_at(digits);
    let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*millis).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_read_as_it_is_written() {
        for (millis, name) in [
            (1_000, "1s"),
            (10_000, "10s"),
            (60_000, "1m"),
            (600_000, "10m"),
            (90_000, "90s"),
            (250, "250ms"),
            (7_200_000, "2h"),
            (172_800_000, "2d"),
        ] {
            let delay = Duration::from_millis(millis);
            assert_eq!(delay_name(delay), name);
            assert_eq!(parse_delay(name), Some(delay));
        }
        for name in ["", "s", "10", "10 s", "1w", "-1s", "99999999999999999999s", "18446744073709551615d"] {
            assert_eq!(parse_delay(name), None, "{name}");
        }
    }

    #[test]
    fn attempts_and_deadline_end_the_retries() {
        let policy = RetryPolicy::default();
        let seconds =
            |attempts, since| policy.delay(attempts, Duration::from_secs(since)).map(|d| d.as_secs());
        assert_eq!(
            [1, 2, 3, 4, 5].map(|attempts| seconds(attempts, 0)),
            [Some(1), Some(10), Some(60), Some(600), None]
        );
        assert_eq!(seconds(4, 1_200), Some(600));
        assert_eq!(seconds(4, 1_201), None);
        assert_eq!(seconds(0, 0), None);
    }

    #[test]
    fn tiers_that_cannot_be_topics_are_refused() {
        let policy = |tiers: &[u64]| RetryPolicy {
            tiers: tiers.iter().map(|millis| Duration::from_millis(*millis)).collect(),
            ..RetryPolicy::default()
        };
        assert!(policy(&[]).check().is_ok());
        assert!(policy(&[1_000, 1_000]).check().unwrap_err().to_string().contains("1s is there twice"));
        assert!(policy(&[0]).check().is_err());
        assert!(policy(&(1..12).collect::<Vec<_>>()).check().is_err());
        let nanos = RetryPolicy { tiers: vec![Duration::from_micros(1)], ..RetryPolicy::default() };
        assert!(nanos.check().is_err());
        assert!(RetryPolicy { deadline: Duration::ZERO, ..RetryPolicy::default() }.check().is_err());
    }
}
