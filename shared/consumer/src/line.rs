//! A subscription at run time: what its source, its retry topics, its replay topic and its park have in common.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::Notify;

use crate::{
    Error,
    breaker::{Breaker, BreakerSettings},
    park::{ParkSettings, ParkedGauge, Room},
    policy::{Order, ReplaySafety, RetryPolicy, delay_name, parse_delay},
    settings::{Settings, dead_letter_topic, retry_topic},
};

/// Bounds of the jitter of a due time: within one retry topic the delay is fixed, and a record that is due later holds
/// up those behind it. Spreading what failed together over a tenth of the delay, at most half a second, keeps that
/// lateness bounded.
pub(crate) const JITTER_SHARE: u32 = 10;
pub(crate) const JITTER_MAX: Duration = Duration::from_millis(500);

/// What kind of topic of a subscription a partition belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Source,
    /// With the delay of its name, whether or not it is still configured.
    Retry(Duration),
    Replay,
}

#[derive(Debug)]
pub(crate) struct Line {
    /// Source topic without prefix.
    pub(crate) topic: String,
    /// Group without prefix.
    pub(crate) group: String,
    /// Source topic with prefix.
    pub(crate) source: Arc<str>,
    /// Group with prefix: the inbox's `consumer_group`.
    pub(crate) consumer_group: Arc<str>,
    pub(crate) order: Order,
    pub(crate) replay_safety: ReplaySafety,
    pub(crate) dead_letter_topic: Arc<str>,
    pub(crate) breaker: Arc<Breaker>,
    /// Where keys are ordered: how they are parked.
    pub(crate) park: Option<ParkSettings>,
    pub(crate) room: Room,
    /// What is parked, as counted last.
    pub(crate) parked: Mutex<Option<ParkedGauge>>,
    /// Wakes the drainer.
    pub(crate) wake: Arc<Notify>,
    /// Names of the retry topics, in the order of the policy's tiers.
    retry_topics: Vec<Arc<str>>,
}

/// When and where a message is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Again {
    pub(crate) topic: Arc<str>,
    pub(crate) due: DateTime<Utc>,
}

impl Line {
    pub(crate) fn new(
        topic: String,
        group: String,
        order: Order,
        replay_safety: ReplaySafety,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let prefix = settings.topic_prefix.as_str();
        check_name("topic", &topic, true)?;
        // With a dot, two subscriptions could share the name of a retry or dead-letter topic.
        check_name("group", &group, false)?;
        order.policy().map_or(Ok(()), RetryPolicy::check)?;
        let tiers = match &order {
            Order::None(policy) => &policy.tiers[..],
            Order::Partition | Order::Key(..) => &[],
        };
        let retry_topics = tiers.iter().map(|tier| retry_topic(prefix, &topic, &group, *tier).into());
        Ok(Self {
            source: format!("{prefix}{topic}").into(),
            consumer_group: format!("{prefix}{group}").into(),
            retry_topics: retry_topics.collect(),
            dead_letter_topic: dead_letter_topic(prefix, &topic, &group).into(),
            breaker: Breaker::new(settings.breaker.clone()),
            park: match &order {
                Order::Key(retry, after_dead) => Some(ParkSettings {
                    retry: retry.clone(),
                    after_dead: *after_dead,
                    ..settings.park.clone()
                }),
                Order::Partition | Order::None(_) => None,
            },
            room: Room::default(),
            parked: Mutex::default(),
            wake: Arc::default(),
            topic,
            group,
            order,
            replay_safety,
        })
    }

    /// For the harness, which has no topics: a failing message is reported.
    pub(crate) fn in_place(group: &str) -> Self {
        Self {
            topic: String::new(),
            group: group.to_owned(),
            source: "".into(),
            consumer_group: group.into(),
            order: Order::Partition,
            replay_safety: ReplaySafety::default(),
            dead_letter_topic: "".into(),
            breaker: Breaker::new(BreakerSettings::default()),
            park: None,
            room: Room::default(),
            parked: Mutex::default(),
            wake: Arc::default(),
            retry_topics: Vec::new(),
        }
    }

    /// What a topic with prefix is to this subscription; `None` when it is not its own.
    pub(crate) fn kind(&self, topic: &str) -> Option<Kind> {
        if topic == &*self.source {
            return Some(Kind::Source);
        }
        let rest = topic.strip_prefix(&*self.source)?.strip_prefix('.')?.strip_prefix(&self.group)?;
        match rest {
            ".replay" => Some(Kind::Replay),
            _ => rest.strip_prefix(".retry.").and_then(parse_delay).map(Kind::Retry),
        }
    }

    /// A pattern over the retry topics, also those of tiers that are no longer configured, so that they are drained,
    /// and the replay topic. None of them needs to exist.
    pub(crate) fn pattern(&self) -> String {
        let stem = regex_escape(&format!("{}.{}.", self.source, self.group));
        format!("^{stem}(replay|retry\\.[0-9]+(ms|s|m|h|d))$")
    }

    /// The next attempt of a message that failed transiently; `None` when attempts or deadline are used up.
    pub(crate) fn again(
        &self,
        attempts: u32,
        first_failed: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Option<Again> {
        let Order::None(policy) = &self.order else { return None };
        let delay = policy.delay(attempts, since(first_failed, now))?;
        let topic = policy.tiers.iter().position(|tier| *tier == delay)?;
        let jitter = rand::random_range(Duration::ZERO..=(delay / JITTER_SHARE).min(JITTER_MAX));
        let due = now + TimeDelta::from_std(delay + jitter).unwrap_or(TimeDelta::MAX);
        Some(Again { topic: Arc::clone(&self.retry_topics[topic]), due })
    }

    /// How its park is drained, whether or not it still parks.
    pub(crate) fn drained_with(&self) -> ParkSettings {
        self.park.clone().unwrap_or_else(|| {
            let retry = self.order.policy().cloned().unwrap_or_default();
            ParkSettings { retry, ..ParkSettings::default() }
        })
    }

    /// Names of the delays that are configured.
    pub(crate) fn tiers(&self) -> Vec<String> {
        self.order
            .policy()
            .map_or_else(Vec::new, |policy| policy.tiers.iter().map(|tier| delay_name(*tier)).collect())
    }
}

fn since(first_failed: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Duration {
    first_failed.and_then(|first| (now - first).to_std().ok()).unwrap_or_default()
}

/// Names hold letters, digits, dashes, underscores and dots; of these only the dot means something in a pattern. The
/// prefix comes from the settings and is checked to be of the same characters.
fn regex_escape(name: &str) -> String {
    name.replace('.', "\\.")
}

pub(crate) fn check_name(kind: &str, name: &str, dots: bool) -> Result<(), Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || (dots && c == '.');
    if name.is_empty() || name.len() > 100 || !name.chars().all(allowed) {
        let dot = if dots { " and dots" } else { ", no dots" };
        return Err(Error::Setting(format!(
            "{kind} {name:?}: a name has 1 to 100 letters, digits, dashes, underscores{dot}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(order: Order) -> Line {
        let (topic, group) = ("orders.v1".to_owned(), "point".to_owned());
        Line::new(topic, group, order, ReplaySafety::Safe, &Settings::new(Vec::new(), "x.")).unwrap()
    }

    #[test]
    fn a_topic_is_told_by_its_name_also_one_of_a_tier_that_is_gone() {
        let line = line(Order::None(RetryPolicy::default()));
        for (topic, kind) in [
            ("x.orders.v1", Some(Kind::Source)),
            ("x.orders.v1.point.retry.10s", Some(Kind::Retry(Duration::from_secs(10)))),
            ("x.orders.v1.point.retry.7m", Some(Kind::Retry(Duration::from_secs(420)))),
            ("x.orders.v1.point.replay", Some(Kind::Replay)),
            ("x.orders.v1.point.dlt", None),
            ("x.orders.v1.points.replay", None),
            ("orders.v1.point.replay", None),
            ("x.orders.v1.point.retry.x", None),
        ] {
            assert_eq!(line.kind(topic), kind, "{topic}");
        }
        assert_eq!(line.pattern(), r"^x\.orders\.v1\.point\.(replay|retry\.[0-9]+(ms|s|m|h|d))$");
    }

    #[test]
    fn each_attempt_goes_to_the_next_tier_and_is_never_due_early() {
        let (line, now) = (line(Order::None(RetryPolicy::default())), Utc::now());
        for (attempts, tier, seconds) in [(1, "1s", 1), (2, "10s", 10), (3, "1m", 60), (4, "10m", 600)] {
            for _ in 0..100 {
                let again = line.again(attempts, None, now).unwrap();
                assert_eq!(*again.topic, *format!("x.orders.v1.point.retry.{tier}"));
                let after = (again.due - now).to_std().unwrap();
                let delay = Duration::from_secs(seconds);
                assert!(after >= delay && after <= delay + (delay / 10).min(JITTER_MAX), "{after:?}");
            }
        }
        assert_eq!(line.again(5, None, now), None);
        assert_eq!(line.again(1, Some(now - TimeDelta::minutes(31)), now), None, "past the deadline");
        assert!(
            line.again(1, Some(now + TimeDelta::minutes(31)), now).is_some(),
            "a clock that stepped back"
        );
    }
}
