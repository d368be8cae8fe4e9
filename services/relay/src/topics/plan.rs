//! What lies between the declaration and the cluster. No I/O.

use std::collections::BTreeMap;
use std::fmt;

use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};

use super::Topic;

/// A topic as the cluster has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// Partition count.
    pub partitions: i32,
    /// Partitions that have a leader.
    pub led: i32,
    /// Replicas of the first partition.
    pub replication: i32,
    /// Dynamic configuration.
    pub config: BTreeMap<String, String>,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Topic with its prefix.
    pub topic: String,
    /// What differs.
    pub kind: Kind,
}

/// Kinds of difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// It does not exist.
    Create,
    /// A setting has another value, or none.
    Change { key: String, from: Option<String>, to: String },
    /// A setting that the file does not name.
    Reset { key: String, from: String },
    /// A partition has no leader.
    NoLeader,
    /// Another partition count.
    Partitions { live: i32, declared: i32 },
    /// Another replication.
    Replication { live: i32, declared: i32 },
}

impl Difference {
    /// Whether `apply` can do something about it.
    pub fn can_be_applied(&self) -> bool {
        !matches!(self.kind, Kind::Partitions { .. } | Kind::Replication { .. })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topic = &self.topic;
        match &self.kind {
            Kind::Create => write!(f, "{topic} would be created"),
            Kind::Change { key, from, to } => {
                write!(f, "{topic}: {key} {} becomes {to}", from.as_deref().unwrap_or("(broker's default)"))
            }
            Kind::Reset { key, from } => {
                write!(f, "{topic}: {key} {from} would be reset to the broker's default")
            }
            Kind::NoLeader => write!(f, "{topic} has partitions without a leader"),
            Kind::Partitions { live, declared } => write!(
                f,
                "{topic} has {live} partitions and {declared} are declared: the count of a live topic is never \
                 changed, it would move keys and break their order; drain and alter by hand, or use a new version"
            ),
            Kind::Replication { live, declared } => write!(
                f,
                "{topic} has {live} replicas and {declared} are declared: reassign partitions by Kafka's own tool"
            ),
        }
    }
}

/// Differences of the declared topics from the live ones, by name.
pub fn plan(topics: &[Topic], live: &BTreeMap<String, Live>) -> Vec<Difference> {
    let mut differences = Vec::new();
    for topic in topics {
        let mut found = |kind| differences.push(Difference { topic: topic.name.clone(), kind });
        let Some(live) = live.get(&topic.name) else {
            found(Kind::Create);
            continue;
        };
        if live.partitions != topic.partitions {
            found(Kind::Partitions { live: live.partitions, declared: topic.partitions });
        }
        if live.replication != topic.replication {
            found(Kind::Replication { live: live.replication, declared: topic.replication });
        }
        if live.led < live.partitions {
            found(Kind::NoLeader);
        }
        for (key, to) in &topic.config {
            let from = live.config.get(key);
            if from != Some(to) {
                found(Kind::Change { key: key.clone(), from: from.cloned(), to: to.clone() });
            }
        }
        for (key, from) in live.config.iter().filter(|(key, _)| !topic.config.contains_key(*key)) {
            found(Kind::Reset { key: key.clone(), from: from.clone() });
        }
    }
    differences
}

/// The differences as a table.
pub(super) fn show(differences: &[Difference]) -> String {
    if differences.is_empty() {
        return "no difference".to_owned();
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(["difference"]);
    for difference in differences {
        table.add_row([difference.to_string()]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn a_plan_names_what_is_created_changed_and_reset_and_what_is_refused() {
        let declared = |name: &str| Topic {
            name: name.to_owned(),
            partitions: 16,
            replication: 1,
            config: config(&[("retention.ms", "7"), ("cleanup.policy", "delete")]),
        };
        let there =
            |partitions, pairs| Live { partitions, led: partitions, replication: 1, config: config(pairs) };
        let live = BTreeMap::from([
            ("same".to_owned(), there(16, &[("retention.ms", "7"), ("cleanup.policy", "delete")])),
            ("other".to_owned(), there(8, &[("retention.ms", "5"), ("segment.bytes", "1")])),
        ]);
        let differences = plan(&[declared("same"), declared("other"), declared("new")], &live);
        let texts: Vec<String> = differences.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 5, "{texts:?}");
        assert!(texts[0].contains("8 partitions and 16 are declared"));
        assert!(texts[1].contains("cleanup.policy (broker's default) becomes delete"));
        assert!(texts[2].contains("retention.ms 5 becomes 7"));
        assert!(texts[3].contains("segment.bytes 1 would be reset"));
        assert!(texts[4].contains("new would be created"));
        assert_eq!(differences.iter().filter(|d| !d.can_be_applied()).count(), 1);
    }
}
