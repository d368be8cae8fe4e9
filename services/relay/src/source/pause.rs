//! Topics that are unknown or not permitted, and when to ask the cluster about them again. No I/O.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest pause of a topic that the cluster calls good and that refuses its rows.
const LONGEST: Duration = Duration::from_secs(300);

/// See the module.
#[derive(Debug)]
pub(crate) struct Pauses {
    retry: Duration,
    /// When to ask again; `None`: being asked.
    paused: HashMap<Arc<str>, Option<Instant>>,
    /// How long a topic pauses next time, of which nothing was acknowledged since it last paused.
    next: HashMap<Arc<str>, Duration>,
}

impl Pauses {
    /// Asks about a paused topic each `retry`.
    pub(crate) fn new(retry: Duration) -> Self {
        Self { retry, paused: HashMap::new(), next: HashMap::new() }
    }

    /// The topic refused a row. Whether it pauses from now on, and did not before.
    pub(crate) fn refused(&mut self, topic: &Arc<str>, now: Instant) -> bool {
        if self.paused.contains_key(topic) {
            return false;
        }
        // Rule: a topic that refuses its rows again after the cluster called it good pauses for twice as long. Each
        // time it goes on all buckets are read from their starts, and the others must come to their rows between.
        let wait = self.next.get(topic).copied().unwrap_or(self.retry);
        self.next.insert(topic.clone(), wait.saturating_mul(2).min(self.retry.max(LONGEST)));
        self.paused.insert(topic.clone(), Some(now + wait));
        true
    }

    /// Topics to ask about now.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Arc<str>> {
        let due = self.paused.iter_mut().filter(|(_, again)| again.is_some_and(|again| again <= now));
        let ask = due.map(|(topic, again)| {
            *again = None;
            topic.clone()
        });
        ask.collect()
    }

    /// The cluster does not know the topic, or does not permit it.
    pub(crate) fn still(&mut self, topic: &Arc<str>, now: Instant) {
        self.paused.insert(topic.clone(), Some(now + self.retry));
    }

    /// The cluster calls the topic good: it goes on.
    pub(crate) fn good(&mut self, topic: &Arc<str>) {
        self.paused.remove(topic);
    }

    /// A row of the topic was acknowledged.
    pub(crate) fn acked(&mut self, topic: &Arc<str>) {
        if !self.next.is_empty() {
            self.next.remove(topic);
        }
    }

    /// Paused topics.
    pub(crate) fn topics(&self) -> Vec<Arc<str>> {
        self.paused.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_is_called_good_and_refuses_its_rows_goes_on_ever_more_seldom() {
        let (second, topic, mut now) = (Duration::from_secs(1), Arc::<str>::from("t"), Instant::now());
        let mut pauses = Pauses::new(second);
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert!(pauses.refused(&topic, now), "{wait}");
            assert!(!pauses.refused(&topic, now), "the other rows in flight count nothing");
            assert!(pauses.due(now + wait * second - second / 2).is_empty(), "{wait}");
            now += wait * second;
            assert_eq!(pauses.due(now), std::slice::from_ref(&topic), "{wait}");
            assert!(pauses.due(now).is_empty(), "it is being asked");
            pauses.good(&topic);
            assert!(pauses.topics().is_empty());
        }
        pauses.acked(&topic);
        assert!(
            pauses.refused(&topic, now) && !pauses.due(now + second).is_empty(),
            "it had been well between"
        );
    }

    #[test]
    fn a_topic_that_is_missing_is_asked_about_at_one_pace() {
        let (second, topic, mut now) = (Duration::from_secs(1), Arc::<str>::from("t"), Instant::now());
        let mut pauses = Pauses::new(second);
        assert!(pauses.refused(&topic, now));
        for _ in 0..100 {
            now += second;
            assert_eq!(pauses.due(now), std::slice::from_ref(&topic));
            pauses.still(&topic, now);
        }
        assert_eq!(pauses.topics(), [topic]);
    }
}
