//! Asking and altering the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, ConfigSource, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::Topic;
use super::plan::{Difference, Kind, Live};

const TIMEOUT: Duration = Duration::from_secs(15);

/// Why the cluster could not be asked or altered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It did not answer.
    #[error("Kafka does not answer (KAFKA_BOOTSTRAP)")]
    Kafka(#[from] KafkaError),
    /// It refused one topic.
    #[error("topic {topic:?} was refused: {code}")]
    Refused {
        /// Topic with its prefix.
        topic: String,
        /// The broker's word.
        code: RDKafkaErrorCode,
    },
    /// A bug.
    #[error("a task panicked")]
    Task(#[from] tokio::task::JoinError),
}

/// A connection for administration.
pub struct Cluster {
    admin: Arc<AdminClient<DefaultClientContext>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cluster")
    }
}

impl Cluster {
    /// A client; it connects on its own.
    ///
    /// # Errors
    /// The client refuses its settings.
    pub fn connect(settings: &[(String, String)]) -> Result<Self, Error> {
        let config: ClientConfig = settings.iter().cloned().collect();
        Ok(Self { admin: Arc::new(config.create()?) })
    }

    /// Those of the topics that exist.
    ///
    /// # Errors
    /// [`Error::Kafka`], [`Error::Refused`].
    pub async fn live(&self, topics: &[Topic]) -> Result<BTreeMap<String, Live>, Error> {
        let admin = self.admin.clone();
        let metadata =
            tokio::task::spawn_blocking(move || admin.inner().fetch_metadata(None, TIMEOUT)).await??;
        let wanted: BTreeSet<&str> = topics.iter().map(|t| t.name.as_str()).collect();
        let mut live = BTreeMap::new();
        for topic in metadata.topics().iter().filter(|t| wanted.contains(t.name())) {
            let partitions = topic.partitions();
            let shape = Live {
                partitions: count(partitions.len()),
                led: count(partitions.iter().filter(|p| p.leader() >= 0).count()),
                replication: partitions.first().map_or(0, |p| count(p.replicas().len())),
                config: BTreeMap::new(),
            };
            live.insert(topic.name().to_owned(), shape);
        }
        for (name, topic) in &mut live {
            // One topic a call: a topic that is being deleted must not spoil the others' answer.
            let resource = [ResourceSpecifier::Topic(name)];
            for described in self.admin.describe_configs(&resource, &options()).await? {
                let described = described.map_err(|code| Error::Refused { topic: name.clone(), code })?;
                let dynamic =
                    described.entries.into_iter().filter(|e| e.source == ConfigSource::DynamicTopic);
                topic.config = dynamic.filter_map(|e| Some((e.name, e.value?))).collect();
            }
        }
        Ok(live)
    }

    /// Creates and alters what differs.
    ///
    /// # Errors
    /// [`Error::Kafka`], [`Error::Refused`]; what came before it is applied.
    pub async fn apply(&self, topics: &[Topic], differences: &[Difference]) -> Result<(), Error> {
        for topic in topics {
            let mut kinds = differences.iter().filter(|d| d.topic == topic.name).map(|d| &d.kind);
            if kinds.clone().any(|kind| matches!(kind, Kind::Create)) {
                self.create(topic).await?;
            } else if kinds.any(|kind| matches!(kind, Kind::Change { .. } | Kind::Reset { .. })) {
                self.alter(topic).await?;
            }
        }
        Ok(())
    }

    async fn create(&self, topic: &Topic) -> Result<(), Error> {
        let replication = TopicReplication::Fixed(topic.replication);
        let mut new = NewTopic::new(&topic.name, topic.partitions, replication);
        for (key, value) in &topic.config {
            new = new.set(key, value);
        }
        for made in self.admin.create_topics([&new], &options()).await? {
            match made {
                // Another `apply` was faster; waiting for the declared state tells whether it agrees.
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => return Err(Error::Refused { topic, code }),
            }
        }
        Ok(())
    }

    async fn alter(&self, topic: &Topic) -> Result<(), Error> {
        // The call replaces the whole dynamic configuration, as the file declares it.
        let mut alter = AlterConfig::new(ResourceSpecifier::Topic(&topic.name));
        for (key, value) in &topic.config {
            alter = alter.set(key, value);
        }
        for altered in self.admin.alter_configs([&alter], &options()).await? {
            altered.map_err(|(_, code)| Error::Refused { topic: topic.name.clone(), code })?;
        }
        Ok(())
    }
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(TIMEOUT)).operation_timeout(Some(TIMEOUT))
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
