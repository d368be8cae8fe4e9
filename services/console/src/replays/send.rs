//! The replay record, and its way to Kafka.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::trace::TraceContextExt;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use tracing::Instrument;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use uuid::Uuid;
use waybill_event::headers;
use waybill_event::trace::TraceContext;

use crate::index::RawHeader;

/// Headers of ours that a replay keeps: where the message lay first, and the span of the failed attempt.
const KEPT: [&str; 5] = [
    headers::ORIGIN_TOPIC,
    headers::ORIGIN_PARTITION,
    headers::ORIGIN_OFFSET,
    headers::ORIGIN_TIMESTAMP,
    headers::LAST_TRACEPARENT,
];
const OURS: &str = "waybill-";

/// Produces replays. Cheap to clone.
#[derive(Clone)]
pub struct Sender(Arc<Inner>);

struct Inner {
    together: Renewed,
    /// The broker refuses a batch for its size as a whole: which record is at fault shows only alone.
    alone: Renewed,
    denied: Vec<String>,
}

/// An idempotent producer may end for good; then there is a new one.
struct Renewed {
    config: ClientConfig,
    current: Mutex<FutureProducer>,
}

impl Renewed {
    fn new(config: ClientConfig) -> KafkaResult<Self> {
        let current = Mutex::new(config.create()?);
        Ok(Self { config, current })
    }

    fn get(&self) -> KafkaResult<FutureProducer> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((code, reason)) = current.client().fatal_error() {
            tracing::error!(%code, reason, "the producer of replays has ended and is made anew");
            let old = std::mem::replace(&mut *current, self.config.create()?);
            // What it still has comes back as failed. Its end blocks.
            tokio::task::spawn_blocking(move || drop(old));
        }
        Ok(current.clone())
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("denied", &self.0.denied).finish_non_exhaustive()
    }
}

/// Of which replay a record is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub(super) replay_id: Uuid,
    pub(super) replayed_by: Uuid,
    /// This one included.
    pub(super) count: i32,
}

/// A record to send.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) topic: String,
    pub(super) partition: Option<i32>,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) headers: Vec<RawHeader>,
}

impl Sender {
    /// `timeout`: how long a record may be on its way; then it is reported as failed.
    ///
    /// # Errors
    /// The client cannot be made.
    pub fn new(client: &[(String, String)], timeout: Duration, denied: Vec<String>) -> KafkaResult<Self> {
        let mut config = ClientConfig::new();
        config.extend(client.iter().cloned());
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("partitioner", "murmur2_random")
            .set("linger.ms", "2")
            .set("message.timeout.ms", timeout.as_millis().to_string())
            // The broker decides what is too large.
            .set("message.max.bytes", "16777216")
            .set("topic.metadata.propagation.max.ms", "1000");
        let mut alone = config.clone();
        alone.set("linger.ms", "0").set("batch.num.messages", "1");
        let (together, alone) = (Renewed::new(config)?, Renewed::new(alone)?);
        Ok(Self(Arc::new(Inner { together, alone, denied })))
    }

    /// The client.
    pub(crate) fn producer(&self) -> KafkaResult<FutureProducer> {
        self.0.together.get()
    }

    /// Settings of the client, for a reader.
    pub(super) fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for name in ["bootstrap.servers", "security.protocol", "ssl.ca.location"].into_iter().chain([
            "sasl.mechanisms",
            "sasl.username",
            "sasl.password",
        ]) {
            if let Some(value) = self.0.together.config.get(name) {
                config.set(name, value);
            }
        }
        config
    }

    /// Sends, and returns once all replicas have it.
    pub(super) async fn send(&self, outgoing: &Outgoing, stamp: Stamp) -> Result<(), KafkaError> {
        let span = tracing::info_span!(
            "replay",
            otel.kind = "producer",
            otel.name = format!("send {}", outgoing.topic),
            messaging.system = "kafka",
            messaging.destination.name = outgoing.topic,
            replay_id = %stamp.replay_id,
        );
        if let Some(old) = traceparent(&outgoing.headers) {
            // A new trace: the old one may be long over. The record's own traceparent stays.
            span.add_link(old.to_context().span().span_context().clone());
        }
        let headers = replay_headers(&outgoing.headers, &self.0.denied, stamp);
        async {
            let (mut alone, mut partition) = (false, outgoing.partition);
            loop {
                let producer = if alone { self.0.alone.get() } else { self.producer() }?;
                let sent = try_send(&producer, outgoing, headers.clone(), partition).await;
                match sent.as_ref().err().and_then(KafkaError::rdkafka_error_code) {
                    Some(RDKafkaErrorCode::MessageSizeTooLarge) if !alone => alone = true,
                    // Fewer partitions than the dead-letter topic: the key decides.
                    Some(RDKafkaErrorCode::UnknownPartition) if partition.is_some() => partition = None,
                    _ => return sent,
                }
            }
        }
        .instrument(span)
        .await
    }
}

async fn try_send(
    producer: &FutureProducer,
    outgoing: &Outgoing,
    headers: OwnedHeaders,
    partition: Option<i32>,
) -> Result<(), KafkaError> {
    // No timestamp: with the original's, retention could delete it at once.
    let mut record = FutureRecord::<[u8], [u8]>::to(&outgoing.topic).headers(headers);
    record.key = outgoing.key.as_deref();
    record.payload = outgoing.value.as_deref();
    record.partition = partition;
    producer.send(record, Duration::from_secs(1)).await.map(drop).map_err(|(error, _)| error)
}

fn traceparent(list: &[RawHeader]) -> Option<TraceContext> {
    let found = list.iter().rev().find(|h| h.name.as_deref() == Some(headers::TRACEPARENT))?;
    TraceContext::parse(std::str::from_utf8(found.value.as_deref()?).ok()?, None)
}

/// The original's headers as they were, without what belongs to the failure or to somebody's infrastructure, and the
/// stamp behind them.
fn replay_headers(list: &[RawHeader], denied: &[String], stamp: Stamp) -> OwnedHeaders {
    let goes = |name: &str| {
        let lower = name.to_ascii_lowercase();
        let ours = lower.starts_with(OURS) && !KEPT.contains(&lower.as_str());
        !ours && !denied.iter().any(|pattern| is_denied(name, pattern))
    };
    let mut headers = OwnedHeaders::new_with_capacity(list.len() + 3);
    for header in list {
        // A letter with a name that cannot be read is in no plan.
        let Some(name) = header.name.as_deref().filter(|name| goes(name)) else { continue };
        headers = headers.insert(Header { key: name, value: header.value.as_deref() });
    }
    for (name, value) in [
        (headers::REPLAY_ID, stamp.replay_id.to_string()),
        (headers::REPLAYED_BY, stamp.replayed_by.to_string()),
        (headers::REPLAY_COUNT, stamp.count.to_string()),
    ] {
        headers = headers.insert(Header { key: name, value: Some(value.as_bytes()) });
    }
    headers
}

fn is_denied(name: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => !start.is_empty() && name.starts_with(start),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::message::Headers as _;
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;

    #[test]
    fn the_originals_headers_go_and_the_failures_stay() {
        let list: Vec<RawHeader> = [
            ("a", Some("1")),
            ("a", Some("2")),
            ("b", None),
            ("", Some("x")),
            ("__mirror", Some("m")),
            ("traceparent", Some("t")),
            ("waybill-origin-offset", Some("7")),
            ("waybill-last-traceparent", Some("l")),
            ("waybill-group", Some("g")),
            ("Waybill-Error-Code", Some("c")),
            ("waybill-attempt", Some("5")),
            ("waybill-first-failed-at", Some("f")),
            ("waybill-replay-count", Some("1")),
        ]
        .into_iter()
        .map(|(name, value)| RawHeader {
            name: Some(name.to_owned()),
            value: value.map(|value| value.as_bytes().to_vec()),
        })
        .collect();
        let stamp = Stamp { replay_id: Uuid::nil(), replayed_by: Uuid::nil(), count: 2 };
        let sent = replay_headers(&list, &["__*".to_owned(), "*".to_owned()], stamp);
        let text = |value: Option<&[u8]>| value.map(|value| String::from_utf8(value.to_vec()).unwrap());
        let sent: Vec<_> = sent.iter().map(|header| (header.key.to_owned(), text(header.value))).collect();
        let nil = Uuid::nil().to_string();
        let expected = [
            ("a", Some("1")),
            ("a", Some("2")),
            ("b", None),
            ("", Some("x")),
            ("traceparent", Some("t")),
            ("waybill-origin-offset", Some("7")),
            ("waybill-last-traceparent", Some("l")),
            ("waybill-replay-id", Some(nil.as_str())),
            ("waybill-replayed-by", Some(nil.as_str())),
            ("waybill-replay-count", Some("2")),
        ]
        .map(|(name, value)| (name.to_owned(), value.map(str::to_owned)));
        assert_eq!(sent, expected);
    }

    #[tokio::test]
    async fn a_producer_that_has_ended_for_good_is_made_anew() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("replay", 4, 1).unwrap();
        let client = [("bootstrap.servers".to_owned(), cluster.bootstrap_servers())];
        let sender = Sender::new(&client, Duration::from_secs(5), Vec::new()).unwrap();
        let outgoing = Outgoing {
            topic: "replay".to_owned(),
            partition: Some(0),
            key: None,
            value: Some(b"x".to_vec()),
            headers: Vec::new(),
        };
        let stamp = Stamp { replay_id: Uuid::nil(), replayed_by: Uuid::nil(), count: 1 };
        for too_large in [false, true] {
            let end = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
            let mut errors = vec![end; 4];
            if too_large {
                // Sent alone then, by the other producer.
                errors.insert(0, RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
            }
            sender.send(&outgoing, stamp).await.unwrap();
            cluster.request_errors(RDKafkaApiKey::Produce, &errors);
            sender.send(&outgoing, stamp).await.unwrap_err();
            let producer = if too_large { &sender.0.alone } else { &sender.0.together };
            assert!(
                producer.current.lock().unwrap().client().fatal_error().is_some(),
                "else it shows nothing"
            );
            cluster.clear_request_errors(RDKafkaApiKey::Produce);
            sender.send(&outgoing, stamp).await.unwrap();
            // The other one too, if it was that.
            cluster.request_errors(RDKafkaApiKey::Produce, &errors[..usize::from(too_large)]);
            sender.send(&outgoing, stamp).await.unwrap();
        }
    }
}
