//! The producer of dead letters: idempotent, all replicas, each awaited to its acknowledgement.

use std::time::Duration;

use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    producer::{FutureProducer, FutureRecord, Producer},
};

use super::record::{Shape, headers};
use crate::{batch::Dead, settings::Settings};

/// Publishes dead letters for every group of a consumer; cheap to clone.
#[derive(Clone)]
pub(crate) struct DeadLetters {
    together: FutureProducer,
    /// The broker refuses a batch for its size as a whole: whether a record is at fault shows only alone.
    alone: FutureProducer,
}

impl DeadLetters {
    pub(crate) fn new(settings: &Settings) -> Result<Self, KafkaError> {
        Ok(Self { together: settings.producer(true).create()?, alone: settings.producer(false).create()? })
    }

    /// Publishes to the same partition number and returns once all replicas have it.
    ///
    /// Its own wait is the producer's delivery limit and nothing shorter: a record reported as failed while it is
    /// still under way would be in the topic twice.
    pub(crate) async fn publish(&self, topic: &str, group: &str, dead: &Dead) -> Result<(), KafkaError> {
        let (mut shape, mut producer) = (Shape::Full, &self.together);
        let mut partition = Some(dead.record.partition);
        loop {
            let sent = send(producer, topic, group, dead, shape, partition).await;
            let Err(error) = sent else { return Ok(()) };
            match (error.rdkafka_error_code(), shape.smaller()) {
                (Some(RDKafkaErrorCode::MessageSizeTooLarge), _)
                    if std::ptr::eq(producer, &self.together) =>
                {
                    producer = &self.alone;
                }
                (Some(RDKafkaErrorCode::MessageSizeTooLarge), Some(smaller)) => shape = smaller,
                // Fewer partitions than the source: the record matters more than where it lies.
                (Some(RDKafkaErrorCode::UnknownPartition), _) if partition.is_some() => partition = None,
                (Some(RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition), _) => {
                    self.look_for(topic).await;
                    return Err(error);
                }
                _ => return Err(error),
            }
        }
    }

    /// Asks the broker for the topic, so that one created meanwhile is known before the next try.
    async fn look_for(&self, topic: &str) {
        let (producer, topic) = (self.together.clone(), topic.to_owned());
        let asked = tokio::task::spawn_blocking(move || {
            producer.client().fetch_metadata(Some(&topic), Duration::from_secs(2)).map(drop)
        });
        if let Ok(Err(error)) = asked.await {
            tracing::debug!(%error, "metadata of the dead-letter topic");
        }
    }
}

async fn send(
    producer: &FutureProducer,
    topic: &str,
    group: &str,
    dead: &Dead,
    shape: Shape,
    partition: Option<i32>,
) -> Result<(), KafkaError> {
    // No timestamp: with the original's, retention could delete the dead letter at once.
    let mut record = FutureRecord::<[u8], [u8]>::to(topic).headers(headers(dead, group, shape));
    if let Some(key) = &dead.record.key {
        record = record.key(key);
    }
    if let Some(value) = dead.record.value.as_ref().filter(|_| shape.has_value()) {
        record = record.payload(value);
    }
    if let Some(partition) = partition {
        record = record.partition(partition);
    }
    match producer.send(record, Duration::from_secs(1)).await {
        Ok(_) => Ok(()),
        Err((error, _)) => Err(error),
    }
}
