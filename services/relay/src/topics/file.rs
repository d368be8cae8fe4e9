//! The declaration of topics, and what it may not say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// Shortest retention of a dead-letter topic: time for people to look, two weeks of holidays included.
const DLT_RETENTION: Duration = Duration::from_secs(14 * 86_400);
/// Shortest retention of a retry or replay topic: a long weekend without its consumer.
const RETRY_RETENTION: Duration = Duration::from_secs(3 * 86_400);

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not there, or not readable.
    #[error("topics file {} cannot be read (--file, TOPICS_FILE)", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not TOML, or says something unknown; the message shows the line.
    #[error("topics file {} is not valid: {reason}", path.display())]
    Syntax {
        /// Its path.
        path: PathBuf,
        /// Line and what is wrong there.
        reason: String,
    },
    /// There is no such profile.
    #[error("topics file has no section [profiles.{0}]")]
    Profile(String),
    /// A topic breaks a rule.
    #[error("topic {topic:?}: {rule}")]
    Rule {
        /// Name without prefix.
        topic: String,
        /// What is wrong.
        rule: String,
    },
}

/// `topics.toml`: `[defaults]`, overridden by `[profiles.<name>]`, overridden by `[topics."<name>"]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    #[serde(default)]
    defaults: Settings,
    #[serde(default)]
    profiles: BTreeMap<String, Settings>,
    topics: BTreeMap<String, Settings>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    partitions: Option<i32>,
    replication: Option<i32>,
    min_insync_replicas: Option<i32>,
    cleanup_policy: Option<String>,
    max_message_bytes: Option<i64>,
    /// For example `7days`.
    retention: Option<String>,
    /// Any other topic setting, by Kafka's name.
    #[serde(default)]
    config: BTreeMap<String, String>,
}

/// One topic as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Name with its prefix.
    pub name: String,
    /// Partition count; divides 64.
    pub partitions: i32,
    /// Replicas of each partition.
    pub replication: i32,
    /// The whole dynamic configuration.
    pub config: BTreeMap<String, String>,
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Syntax`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|source| Error::Read { path: path.to_owned(), source })?;
        toml::from_str(&text)
            .map_err(|e| Error::Syntax { path: path.to_owned(), reason: e.to_string().trim_end().to_owned() })
    }

    /// The topics, with a prefix before every name.
    ///
    /// # Errors
    /// [`Error::Profile`], [`Error::Rule`].
    pub fn topics(&self, profile: Option<&str>, prefix: &str) -> Result<Vec<Topic>, Error> {
        let profile = match profile {
            None => None,
            Some(name) => Some(self.profiles.get(name).ok_or_else(|| Error::Profile(name.to_owned()))?),
        };
        let mut topics = BTreeMap::new();
        for (name, own) in &self.topics {
            let layers = [Some(&self.defaults), profile, Some(own)];
            topics.insert(name.as_str(), topic(name, layers.into_iter().flatten())?);
        }
        for (name, topic) in &topics {
            derived(name, topic, &topics)?;
        }
        let prefixed = topics.into_values().map(|t| Topic { name: format!("{prefix}{}", t.name), ..t });
        Ok(prefixed.collect())
    }
}

fn rule(topic: &str, rule: impl Into<String>) -> Error {
    Error::Rule { topic: topic.to_owned(), rule: rule.into() }
}

fn topic<'a>(name: &str, layers: impl Iterator<Item = &'a Settings>) -> Result<Topic, Error> {
    let mut all = Settings::default();
    for layer in layers {
        all.partitions = layer.partitions.or(all.partitions);
        all.replication = layer.replication.or(all.replication);
        all.min_insync_replicas = layer.min_insync_replicas.or(all.min_insync_replicas);
        all.cleanup_policy = layer.cleanup_policy.clone().or(all.cleanup_policy);
        all.max_message_bytes = layer.max_message_bytes.or(all.max_message_bytes);
        all.retention = layer.retention.clone().or(all.retention);
        all.config.extend(layer.config.clone());
    }
    let missing = |what| rule(name, format!("{what} is declared neither here nor in [defaults]"));
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 200 || !name.chars().all(legal) {
        return Err(rule(name, "a name has letters, digits, '.', '_' and '-', at most 200"));
    }
    let partitions = all.partitions.ok_or_else(|| missing("partitions"))?;
    if !(1..=64).contains(&partitions) || 64 % partitions != 0 {
        let text = format!("{partitions} partitions do not divide the 64 buckets: 1, 2, 4, 8, 16, 32 or 64");
        return Err(rule(name, text));
    }
    let replication = all.replication.ok_or_else(|| missing("replication"))?;
    let insync = all.min_insync_replicas.ok_or_else(|| missing("min-insync-replicas"))?;
    if replication < 1 || !(1..=replication).contains(&insync) {
        return Err(rule(name, "min-insync-replicas must be between 1 and replication"));
    }
    let retention = all.retention.ok_or_else(|| missing("retention"))?;
    let retention = humantime::parse_duration(&retention)
        .map_err(|e| rule(name, format!("retention {retention:?}: {e}; for example 7days")))?;
    let bytes = all.max_message_bytes.ok_or_else(|| missing("max-message-bytes"))?;
    let policy = all.cleanup_policy.ok_or_else(|| missing("cleanup-policy"))?;
    let mut config = all.config;
    for (key, value) in [
        ("cleanup.policy", policy),
        ("retention.ms", retention.as_millis().to_string()),
        ("max.message.bytes", bytes.to_string()),
        ("min.insync.replicas", insync.to_string()),
    ] {
        if config.insert(key.to_owned(), value).is_some() {
            return Err(rule(name, format!("{key} has a field of its own, it cannot stand under config")));
        }
    }
    Ok(Topic { name: name.to_owned(), partitions, replication, config })
}

/// Rules of retry, replay and dead-letter topics.
fn derived(name: &str, topic: &Topic, all: &BTreeMap<&str, Topic>) -> Result<(), Error> {
    let least = if name.ends_with(".dlt") {
        DLT_RETENTION
    } else if name.contains(".retry.") || name.ends_with(".replay") {
        RETRY_RETENTION
    } else {
        return Ok(());
    };
    if topic.config["cleanup.policy"] != "delete" {
        // Compaction keeps the last record of a key: the earlier dead letters of an order would vanish.
        return Err(rule(
            name,
            "retry, replay and dead-letter topics must not be compacted: cleanup-policy \"delete\"",
        ));
    }
    let retention = topic.config["retention.ms"].parse::<u128>().unwrap_or_default();
    if retention < least.as_millis() {
        let text = format!("retention must be at least {}", humantime::format_duration(least));
        return Err(rule(name, text));
    }
    let sources =
        all.iter().filter(|(other, _)| name.strip_prefix(**other).is_some_and(|r| r.starts_with('.')));
    if let Some((source, of)) = sources.max_by_key(|(other, _)| other.len())
        && of.partitions != topic.partitions
    {
        let text = format!("it must have the {} partitions of {source:?}", of.partitions);
        return Err(rule(name, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: &str = "[defaults]\npartitions = 16\nreplication = 1\nmin-insync-replicas = 1\n\
        cleanup-policy = \"delete\"\nmax-message-bytes = 1000\nretention = \"7days\"\n";

    fn topics(rest: &str, profile: Option<&str>) -> Result<Vec<Topic>, String> {
        let file: File = toml::from_str(&format!("{DEFAULTS}{rest}")).map_err(|e| e.to_string())?;
        file.topics(profile, "p.").map_err(|e| e.to_string())
    }

    #[test]
    fn a_topic_takes_from_the_defaults_the_profile_and_itself_and_gets_the_prefix() {
        let text = "[profiles.production]\nreplication = 3\nmin-insync-replicas = 2\n\
            [topics.\"orders.v1\"]\npartitions = 8\nconfig = { \"segment.bytes\" = \"1048576\" }";
        let topics = topics(text, Some("production")).expect("legal");
        assert_eq!(
            (topics[0].name.as_str(), topics[0].partitions, topics[0].replication),
            ("p.orders.v1", 8, 3)
        );
        assert_eq!(topics[0].config["min.insync.replicas"], "2");
        assert_eq!(topics[0].config["retention.ms"], "604800000");
        assert_eq!(topics[0].config["segment.bytes"], "1048576");
    }

    #[test]
    fn what_breaks_a_rule_is_refused_with_its_name() {
        for (text, expected) in [
            ("[topics.a]\npartitions = 3", "divide"),
            ("[topics.a]\nretention = \"soon\"", "retention"),
            ("[topics.a]\nmin-insync-replicas = 2", "min-insync-replicas"),
            ("[topics.\"a b\"]", "name"),
            ("[topics.a]\nretention-ms = 5", "line 9"),
            ("[topics.a]\nconfig = { \"retention.ms\" = \"5\" }", "field of its own"),
            ("[topics.\"a.g.dlt\"]\nretention = \"60days\"\ncleanup-policy = \"compact\"", "compacted"),
            (
                "[topics.\"a.g.dlt\"]\nretention = \"60days\"\ncleanup-policy = \"compact,delete\"",
                "compacted",
            ),
            ("[topics.\"a.g.dlt\"]\nretention = \"7days\"", "at least 14days"),
            ("[topics.\"a.g.retry.1s\"]\nretention = \"1h\"", "at least 3days"),
            ("[topics.\"a.g.replay\"]\nretention = \"1h\"", "at least 3days"),
            (
                "[topics.a]\n[topics.\"a.g.dlt\"]\nretention = \"30days\"\npartitions = 8",
                "16 partitions of \"a\"",
            ),
        ] {
            let message = topics(text, None).expect_err(text);
            assert!(message.contains(expected), "{message}");
        }
        assert!(topics("[topics.a]", Some("production")).expect_err("none").contains("profiles.production"));
    }

    #[test]
    fn the_repositorys_own_file_is_legal_in_both_profiles() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kafka/topics.toml");
        let file = File::read(&path).expect("valid");
        for profile in [None, Some("production")] {
            let topics = file.topics(profile, "").expect("legal");
            let orders = topics.iter().find(|t| t.name == "orders.v1").expect("declared");
            assert_eq!((orders.partitions, orders.config["max.message.bytes"].as_str()), (16, "1048576"));
        }
    }
}
