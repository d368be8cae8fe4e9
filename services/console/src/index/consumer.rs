//! The index's consumer: its settings, and whether it reaches a broker.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionList;

use crate::{GROUP, Names, Settings};

/// What the client's callbacks tell.
#[derive(Debug, Clone, Default)]
pub struct Link(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    assigned: AtomicBool,
    down: AtomicBool,
    unreadable: Mutex<Unreadable>,
}

/// Records that the client cannot decompress. It tries on and skips nothing, but its error names no partition: that is
/// in its statistics.
#[derive(Debug, Default)]
struct Unreadable {
    /// What it said since the last statistics.
    said: Option<String>,
    /// Partitions that stand still before such records, and the offset.
    at: BTreeMap<(String, i32), i64>,
}

impl Unreadable {
    /// Tells once of each partition that has something to read and gets nothing.
    fn look(&mut self, statistics: &rdkafka::Statistics) {
        let Some(said) = self.said.take() else { return self.at.clear() };
        let mut still = BTreeMap::new();
        for (name, topic) in &statistics.topics {
            for of in topic.partitions.values().filter(|of| of.next_offset >= 0 && of.fetchq_cnt == 0) {
                if of.partition >= 0 && of.next_offset < of.ls_offset {
                    still.insert((name.clone(), of.partition), of.next_offset);
                }
            }
        }
        for ((topic, partition), offset) in still.iter().filter(|(key, _)| !self.at.contains_key(*key)) {
            tracing::error!(
                topic,
                partition,
                offset,
                said,
                "the index stands still before what librdkafka cannot decompress"
            );
        }
        self.at = still;
    }
}

impl Link {
    /// Whether the consumer has its assignment and a broker; else what is missing.
    ///
    /// # Errors
    /// The reason, for `/readyz`.
    pub fn ready(&self) -> Result<(), &'static str> {
        if self.0.down.load(Ordering::Relaxed) {
            return Err("no broker can be reached");
        }
        if self.0.assigned.load(Ordering::Relaxed) { Ok(()) } else { Err("no assignment yet") }
    }

    pub(super) fn heard(&self) {
        self.0.down.store(false, Ordering::Relaxed);
    }

    fn unreadable(&self) -> std::sync::MutexGuard<'_, Unreadable> {
        self.0.unreadable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Link {
    fn error(&self, error: KafkaError, reason: &str) {
        if cannot_decompress(&error) {
            self.unreadable().said = Some(reason.to_owned());
            return;
        }
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.0.down.store(true, Ordering::Relaxed);
        }
        tracing::warn!(%error, reason, "index consumer");
    }

    fn stats(&self, statistics: rdkafka::Statistics) {
        if statistics.brokers.values().any(|broker| broker.state == "UP") {
            self.heard();
        }
        self.unreadable().look(&statistics);
    }
}

/// librdkafka was built without the codec, or the batch is damaged.
pub(super) fn cannot_decompress(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(code, Some(RDKafkaErrorCode::NotImplemented | RDKafkaErrorCode::BadCompression))
}

impl ConsumerContext for Link {
    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(_) = rebalance {
            self.0.assigned.store(true, Ordering::Relaxed);
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        // What is not committed is delivered again, and known.
        if let Err(error) = result {
            tracing::debug!(%error, "offsets of the index are not committed");
        }
    }
}

/// Joins the group and subscribes to every dead-letter topic, present and future.
pub(super) fn subscribe(
    client: &[(String, String)],
    names: &Names,
    settings: &Settings,
    link: Link,
) -> KafkaResult<StreamConsumer<Link>> {
    let mut config = ClientConfig::new();
    config.extend(client.iter().cloned());
    config
        .set("group.id", names.full(GROUP))
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("partition.assignment.strategy", "cooperative-sticky")
        // After a crash the successor's index, and with it every outcome, waits this long; 45 s by the client's default.
        .set("session.timeout.ms", "10000")
        .set("heartbeat.interval.ms", "2000")
        // Bounds what is fetched and not yet indexed, over all topics.
        .set("queued.max.messages.kbytes", "16384")
        .set("fetch.queue.backoff.ms", "20")
        .set("fetch.wait.max.ms", "100")
        .set("topic.metadata.refresh.interval.ms", settings.topic_refresh.as_millis().to_string())
        .set("statistics.interval.ms", "5000");
    let consumer: StreamConsumer<Link> = config.create_with_context(link)?;
    let patterns = names.patterns(&settings.dlt_patterns);
    consumer.subscribe(&patterns.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok(consumer)
}
