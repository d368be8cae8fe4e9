//! Names of topics and groups: with the installation's prefix as in Kafka, and without.

use waybill_event::{Event, ReplayOutcome};

/// What dead-letter topics of ours end in.
const DLT: &str = ".dlt";
/// What replay topics end in.
const REPLAY: &str = ".replay";

/// The installation's prefix, and what follows from it.
#[derive(Debug, Clone)]
pub struct Names {
    prefix: String,
}

impl Names {
    /// Names behind this prefix, which may be empty.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// With the prefix.
    pub fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Without the prefix; `None` when it is another installation's.
    pub fn plain<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(self.prefix.as_str())
    }

    /// The topic of outcomes.
    pub fn outcomes(&self) -> String {
        self.full(ReplayOutcome::TOPIC)
    }

    /// Regular expressions of what the index reads: our dead-letter topics, the outcomes, and `further`.
    ///
    /// The outcomes too by pattern: a subscription by name is an error while the topic is missing.
    pub fn patterns(&self, further: &[String]) -> Vec<String> {
        let ours = format!("^{}.*\\.dlt$", escaped(&self.prefix));
        let outcomes = format!("^{}$", escaped(&self.outcomes()));
        [ours, outcomes].into_iter().chain(further.iter().cloned()).collect()
    }

    /// The replay topic of the one group whose dead letters are on `dlt_topic`; `None` when that is not
    /// `<source topic>.<group>.dlt` of this installation: nobody would read a replay.
    pub fn replay_topic(&self, dlt_topic: &str, source_topic: &str, group: &str) -> Option<String> {
        let group = self.plain(group).filter(|group| !group.is_empty())?;
        self.plain(source_topic).filter(|topic| !topic.is_empty())?;
        let stem = dlt_topic.strip_suffix(DLT)?;
        (stem == format!("{source_topic}.{group}")).then(|| format!("{stem}{REPLAY}"))
    }
}

/// A name in a regular expression. Topics hold letters, digits, `.`, `_` and `-` only.
fn escaped(name: &str) -> String {
    name.replace('.', "\\.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_goes_to_the_group_that_failed_or_nowhere() {
        let names = Names::new("t1.");
        let topic = |dlt, source, group| names.replay_topic(dlt, source, group);
        assert_eq!(
            topic("t1.orders.v1.point.dlt", "t1.orders.v1", "t1.point").as_deref(),
            Some("t1.orders.v1.point.replay")
        );
        // Another group's, another installation's, Spring's, and none at all.
        assert_eq!(topic("t1.orders.v1.point.dlt", "t1.orders.v1", "t1.other"), None);
        assert_eq!(topic("t1.orders.v1.point.dlt", "t1.orders.v1", "point"), None);
        assert_eq!(topic("t1.orders.v1-dlt", "t1.orders.v1", "t1.point"), None);
        assert_eq!(topic("t1.orders.v1..dlt", "t1.orders.v1", "t1."), None);
    }

    #[test]
    fn a_prefix_is_no_regular_expression() {
        assert_eq!(
            Names::new("a.b-").patterns(&["^x$".to_owned()]),
            ["^a\\.b-.*\\.dlt$", "^a\\.b-dlt\\.outcomes\\.v1$", "^x$"]
        );
    }
}
