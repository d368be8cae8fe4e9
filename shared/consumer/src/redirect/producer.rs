//! The producer of redirected records: idempotent, all replicas, each awaited to its acknowledgement.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rdkafka::{
    ClientConfig,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, Producer},
};

use waybill_event::{Event, MessageId, ReplayOutcome, TraceContext, headers, time::ce_time};

use super::record::{Shape, headers_of};
use crate::{batch::Fallen, settings::Settings};

/// Publishes retries, dead letters and outcomes for every group of a consumer; cheap to clone.
#[derive(Clone)]
pub(crate) struct Publisher(Arc<Inner>);

struct Inner {
    together: Renewed,
    /// The broker refuses a batch for its size as a whole: whether a record is at fault shows only alone.
    alone: Renewed,
}

/// An idempotent producer may end for good, as when the broker has forgotten its numbers; then there is a new one.
struct Renewed {
    config: ClientConfig,
    current: Mutex<FutureProducer>,
}

impl Renewed {
    fn new(config: ClientConfig) -> Result<Self, KafkaError> {
        let current = Mutex::new(config.create()?);
        Ok(Self { config, current })
    }

    fn get(&self) -> Result<FutureProducer, KafkaError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((code, reason)) = current.client().fatal_error() {
            tracing::error!(%code, reason, "the producer has ended and is made anew");
            let old = std::mem::replace(&mut *current, self.config.create()?);
            // What it still has comes back as failed. Its end blocks.
            tokio::task::spawn_blocking(move || drop(old));
        }
        Ok(current.clone())
    }
}

impl Publisher {
    pub(crate) fn new(settings: &Settings) -> Result<Self, KafkaError> {
        let [together, alone] = [true, false].map(|together| Renewed::new(settings.producer(together)));
        Ok(Self(Arc::new(Inner { together: together?, alone: alone? })))
    }

    /// Publishes to the same partition number and returns once all replicas have it.
    ///
    /// Its own wait is the producer's delivery limit and nothing shorter: a record reported as failed while it is
    /// still under way would be in the topic twice.
    pub(crate) async fn redirect(&self, topic: &str, group: &str, fallen: &Fallen) -> Result<(), KafkaError> {
        let (mut shape, mut alone) = (Shape::Full, false);
        let mut partition = Some(fallen.record.partition);
        loop {
            let producer = if alone { self.0.alone.get() } else { self.0.together.get() }?;
            let sent = send(&producer, topic, group, fallen, shape, partition).await;
            let Err(error) = sent else { return Ok(()) };
            match (error.rdkafka_error_code(), shape.smaller()) {
                (Some(RDKafkaErrorCode::MessageSizeTooLarge), _) if !alone => alone = true,
                // A retry without its value could not be handled.
                (Some(RDKafkaErrorCode::MessageSizeTooLarge), Some(smaller))
                    if smaller.has_value() || fallen.again.is_none() =>
                {
                    shape = smaller;
                }
                // Fewer partitions than the source: the record matters more than where it lies.
                (Some(RDKafkaErrorCode::UnknownPartition), _) if partition.is_some() => partition = None,
                (Some(RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition), _) => {
                    look_for(producer, topic).await;
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
        let producer = self.0.together.get()?;
        match producer.send(record, Duration::from_secs(1)).await {
            Ok(_) => Ok(()),
            Err((error, _)) => {
                look_for(producer, topic).await;
                Err(error.into())
            }
        }
    }
}

/// Asks the broker for the topic, so that one created meanwhile is known before the next try.
async fn look_for(producer: FutureProducer, topic: &str) {
    let topic = topic.to_owned();
    let asked = tokio::task::spawn_blocking(move || {
        producer.client().fetch_metadata(Some(&topic), Duration::from_secs(2)).map(drop)
    });
    if let Ok(Err(error)) = asked.await {
        tracing::debug!(%error, "metadata of a topic that is missing");
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

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use rdkafka::{
        mocking::MockCluster,
        types::{RDKafkaApiKey, RDKafkaRespErr},
    };
    use uuid::Uuid;

    use super::*;
    use crate::redirect::record::tests::dead;

    /// The first fails with its producer; from then on all goes as before.
    #[tokio::test]
    async fn a_producer_that_has_ended_for_good_is_made_anew() {
        let cluster = MockCluster::new(1).unwrap();
        for topic in ["dead", "outcomes"] {
            cluster.create_topic(topic, 4, 1).unwrap();
        }
        let client = vec![("bootstrap.servers".to_owned(), cluster.bootstrap_servers())];
        let mut settings = Settings::new(client, "");
        settings.dead_letter_timeout = Duration::from_secs(5);
        let publisher = Publisher::new(&settings).unwrap();
        let fallen = dead(waybill_event::Headers::new(), "no");
        let outcome = ReplayOutcome {
            message_id: Uuid::now_v7(),
            replay_id: Uuid::now_v7(),
            consumer_group: "point".to_owned(),
            topic: "orders.v1".to_owned(),
            outcome: "resolved".to_owned(),
            occurred_at: Utc::now(),
        };
        publisher.redirect("dead", "point", &fallen).await.unwrap();
        for too_large in [false, true] {
            let end = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
            let mut errors = vec![end; 4];
            if too_large {
                // Sent alone then, by the other producer.
                errors.insert(0, RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
                publisher.redirect("dead", "point", &fallen).await.unwrap();
            }
            cluster.request_errors(RDKafkaApiKey::Produce, &errors);
            publisher.redirect("dead", "point", &fallen).await.unwrap_err();
            let producer = if too_large { &publisher.0.alone } else { &publisher.0.together };
            assert!(
                producer.current.lock().unwrap().client().fatal_error().is_some(),
                "else it shows nothing"
            );
            cluster.clear_request_errors(RDKafkaApiKey::Produce);
            for _ in 0..3 {
                publisher.redirect("dead", "point", &fallen).await.unwrap();
                publisher.report("outcomes", &outcome, None).await.unwrap();
            }
        }
    }
}
