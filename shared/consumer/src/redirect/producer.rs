//! The producer of redirected records: idempotent, all replicas, each awaited to its acknowledgement.

use std::time::Duration;

use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, Producer},
};

use waybill_event::{Event, MessageId, ReplayOutcome, TraceContext, headers, time::ce_time};

use super::record::{Shape, headers_of};
use crate::{batch::Fallen, settings::Settings};

/// Publishes retries, dead letters and outcomes for every group of a consumer; cheap to clone.
#[derive(Clone)]
pub(crate) struct Publisher {
    together: FutureProducer,
    /// The broker refuses a batch for its size as a whole: whether a record is at fault shows only alone.
    alone: FutureProducer,
}

impl Publisher {
    pub(crate) fn new(settings: &Settings) -> Result<Self, KafkaError> {
        Ok(Self { together: settings.producer(true).create()?, alone: settings.producer(false).create()? })
    }

    /// Publishes to the same partition number and returns once all replicas have it.
    ///
    /// Its own wait is the producer's delivery limit and nothing shorter: a record reported as failed while it is
    /// still under way would be in the topic twice.
    pub(crate) async fn redirect(&self, topic: &str, group: &str, fallen: &Fallen) -> Result<(), KafkaError> {
        let (mut shape, mut producer) = (Shape::Full, &self.together);
        let mut partition = Some(fallen.record.partition);
        loop {
            let sent = send(producer, topic, group, fallen, shape, partition).await;
            let Err(error) = sent else { return Ok(()) };
            match (error.rdkafka_error_code(), shape.smaller()) {
                (Some(RDKafkaErrorCode::MessageSizeTooLarge), _)
                    if std::ptr::eq(producer, &self.together) =>
                {
                    producer = &self.alone;
                }
                // A retry without its value could not be handled.
                (Some(RDKafkaErrorCode::MessageSizeTooLarge), Some(smaller))
                    if smaller.has_value() || fallen.again.is_none() =>
                {
                    shape = smaller;
                }
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

    /// Tells what became of a replayed message, and returns once all replicas have it.
    pub(crate) async fn report(
        &self,
        topic: &str,
        outcome: &ReplayOutcome,
        trace: Option<&TraceContext>,
    ) -> Result<(), Unreported> {
        let value = waybill_event::encode(outcome)?;
        let (key, id, time) = (outcome.key(), MessageId::new().to_string(), ce_time(outcome.occurred_at));
        let kind = outcome.event_type();
        let mut pairs = vec![
            (headers::CE_ID, id.as_str()),
            (headers::CE_TYPE, kind.as_str()),
            (headers::CE_SPECVERSION, headers::SPECVERSION),
            (headers::CE_TIME, time.as_str()),
            (headers::CE_SUBJECT, key.as_str()),
            (headers::CONTENT_TYPE, headers::AVRO),
        ];
        pairs.extend(trace.map(|trace| (headers::TRACEPARENT, trace.traceparent.as_str())));
        let list = OwnedHeaders::new_with_capacity(pairs.len());
        let list =
            pairs.iter().fold(list, |list, (key, value)| list.insert(Header { key, value: Some(*value) }));
        let record = FutureRecord::to(topic).key(key.as_bytes()).payload(&value).headers(list);
        match self.together.send(record, Duration::from_secs(1)).await {
            Ok(_) => Ok(()),
            Err((error, _)) => {
                self.look_for(topic).await;
                Err(error.into())
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
            tracing::debug!(%error, "metadata of a topic that is missing");
        }
    }
}

/// Why an outcome is not told yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreported {
    #[error(transparent)]
    Encode(#[from] waybill_event::EncodeError),
    #[error(transparent)]
    Kafka(#[from] KafkaError),
}

async fn send(
    producer: &FutureProducer,
    topic: &str,
    group: &str,
    fallen: &Fallen,
    shape: Shape,
    partition: Option<i32>,
) -> Result<(), KafkaError> {
    // No timestamp: with the original's, retention could delete it at once.
    let mut record = FutureRecord::<[u8], [u8]>::to(topic).headers(headers_of(fallen, group, shape));
    if let Some(key) = &fallen.record.key {
        record = record.key(key);
    }
    if let Some(value) = fallen.record.value.as_ref().filter(|_| shape.has_value()) {
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
