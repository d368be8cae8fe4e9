//! Which dead-letter topics there are, and how long each keeps its records: asked of the broker, kept in the database.

use std::collections::HashMap;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, OwnedResourceSpecifier, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::store;
use crate::{Names, Settings};

/// Longest wait for the broker.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Keeps `console.dlt_topic` as the broker has it.
pub struct Registry {
    pool: PgPool,
    admin: AdminClient<DefaultClientContext>,
    client: ClientConfig,
    suffixes: Vec<String>,
    prefix: String,
    further: bool,
    every: Duration,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("every", &self.every).finish_non_exhaustive()
    }
}

impl Registry {
    /// Not yet asking.
    ///
    /// # Errors
    /// The client cannot be made.
    pub fn new(
        pool: PgPool,
        client: &[(String, String)],
        names: &Names,
        settings: &Settings,
    ) -> KafkaResult<Self> {
        let mut config = ClientConfig::new();
        config.extend(client.iter().cloned());
        Ok(Self {
            pool,
            admin: config.create()?,
            client: config,
            suffixes: vec![".dlt".to_owned(), "-dlt".to_owned(), ".DLT".to_owned()],
            prefix: names.full(""),
            further: !settings.dlt_patterns.is_empty(),
            every: settings.topic_refresh,
        })
    }

    /// Asks again and again until `shutdown`. What the broker does not say stays as it was.
    pub async fn run(self, shutdown: CancellationToken) {
        loop {
            match self.ask().await {
                Ok(topics) => {
                    if let Err(error) = store::put_topics(&self.pool, &topics).await {
                        tracing::warn!(%error, "dead-letter topics cannot be written down");
                    }
                }
                Err(error) => tracing::warn!(%error, "the broker does not tell its dead-letter topics"),
            }
            tokio::select! {
                () = tokio::time::sleep(self.every) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn ask(&self) -> anyhow::Result<Vec<(String, i32, Option<i64>)>> {
        let client = self.client.clone();
        let found = tokio::task::spawn_blocking(move || -> KafkaResult<Vec<(String, i32)>> {
            let consumer: BaseConsumer = client.create()?;
            let metadata = consumer.fetch_metadata(None, TIMEOUT)?;
            let topics = metadata.topics().iter();
            Ok(topics
                .map(|topic| {
                    (topic.name().to_owned(), i32::try_from(topic.partitions().len()).unwrap_or(i32::MAX))
                })
                .collect())
        })
        .await??;
        let known = sqlx::query_scalar!(r#"select distinct dlt_topic from console.failure"#)
            .fetch_all(&self.pool)
            .await?;
        let found: Vec<_> =
            found.into_iter().filter(|(name, _)| self.is_ours(name) || known.contains(name)).collect();
        let resources: Vec<_> = found.iter().map(|(name, _)| ResourceSpecifier::Topic(name)).collect();
        if resources.is_empty() {
            return Ok(Vec::new());
        }
        let options = AdminOptions::new().request_timeout(Some(TIMEOUT));
        let described = self.admin.describe_configs(&resources, &options).await?;
        let retention: HashMap<&str, i64> = described
            .iter()
            .filter_map(|resource| {
                let resource = resource.as_ref().ok()?;
                let OwnedResourceSpecifier::Topic(topic) = &resource.specifier else { return None };
                let entry = resource.entries.iter().find(|entry| entry.name == "retention.ms")?;
                let ms = entry.value.as_ref()?.parse().ok().filter(|ms| *ms >= 0)?;
                Some((topic.as_str(), ms))
            })
            .collect();
        let topic = |(name, partitions): &(String, i32)| {
            (name.clone(), *partitions, retention.get(name.as_str()).copied())
        };
        Ok(found.iter().map(topic).collect())
    }

    /// Ours by name. Of further patterns only those with a usual ending are shown before their first record.
    fn is_ours(&self, topic: &str) -> bool {
        let ours = topic.starts_with(&self.prefix) && topic.ends_with(&self.suffixes[0]);
        ours || (self.further && self.suffixes.iter().any(|suffix| topic.ends_with(suffix.as_str())))
    }
}
