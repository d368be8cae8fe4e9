//! The producer of a source, and the reports that come back from it.

use std::fmt;
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use tokio::sync::mpsc::UnboundedSender;

use super::record::{self, SendSpan};
use super::row::{Row, RowId};

/// Longest wait for an answer about metadata.
const METADATA: Duration = Duration::from_secs(5);

/// What the producer's threads tell the pump.
#[derive(Debug)]
pub(crate) enum Report {
    /// A record's fate.
    Delivered {
        /// The row.
        id: RowId,
        /// Number of the producer that had it.
        generation: u64,
        /// `None`: the broker has it.
        error: Option<RDKafkaErrorCode>,
    },
    /// An error of the client as a whole.
    Client {
        /// Number of the producer.
        generation: u64,
        /// The error.
        code: RDKafkaErrorCode,
    },
}

/// Rides along with a record.
struct Ticket {
    id: RowId,
    span: Option<SendSpan>,
}

struct Context {
    generation: u64,
    reports: UnboundedSender<Report>,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Debug | RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => {
                tracing::debug!(target: "librdkafka", facility, "{message}");
            }
            // What matters is reported by the pump, once: an outage makes librdkafka repeat itself.
            _ => tracing::info!(target: "librdkafka", facility, "{message}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "client error");
        if let Some(code) = error.rdkafka_error_code() {
            drop(self.reports.send(Report::Client { generation: self.generation, code }));
        }
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let error = match result {
            Ok(message) => {
                record::end(ticket.span, Ok((message.partition(), message.offset())));
                None
            }
            Err((error, _)) => {
                record::end(ticket.span, Err(&error.to_string()));
                Some(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown))
            }
        };
        let (id, generation) = (ticket.id, self.generation);
        drop(self.reports.send(Report::Delivered { id, generation, error }));
    }
}

type Threaded = ThreadedProducer<Context>;

/// The producers of one source: one that batches, and one, made when first needed, for rows that go alone.
pub(crate) struct Producers {
    settings: ClientConfig,
    reports: UnboundedSender<Report>,
    generation: u64,
    batching: Threaded,
    alone: Option<Threaded>,
}

impl fmt::Debug for Producers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producers").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// Settings of a source's producer, over the connection settings of the cluster.
pub(crate) fn settings(
    connection: &[(String, String)],
    source: &str,
    rows: u32,
    max_bytes: u32,
) -> ClientConfig {
    let mut config: ClientConfig = connection.iter().cloned().collect();
    let room = 64 * 1024;
    for (name, value) in [
        ("client.id", format!("waybill-relay-{source}")),
        ("enable.idempotence", "true".to_owned()),
        ("acks", "all".to_owned()),
        ("max.in.flight.requests.per.connection", "5".to_owned()),
        // Rule: a record never times out. A finite time would drop rows out of the middle of a key's run.
        ("message.timeout.ms", "0".to_owned()),
        // Java's and Debezium's choice of partition.
        ("partitioner", "murmur2_random".to_owned()),
        ("compression.codec", "lz4".to_owned()),
        ("linger.ms", "1".to_owned()),
        ("batch.size", max_bytes.min(1_000_000).to_string()),
        // The broker is the judge of what is too large; the client's own limit only has to be above the writer's.
        ("message.max.bytes", (max_bytes + room).to_string()),
        // Never full before the budget in flight is: a refused enqueue would have to be undone.
        ("queue.buffering.max.messages", (rows * 2).max(10_000).to_string()),
        ("queue.buffering.max.kbytes", (1 << 20).to_string()),
        // A topic that does not exist is known to be so after this, instead of 30 s.
        ("topic.metadata.propagation.max.ms", "3000".to_owned()),
        ("socket.keepalive.enable", "true".to_owned()),
        ("reconnect.backoff.max.ms", "2000".to_owned()),
    ] {
        config.set(name, value);
    }
    config.set_log_level(RDKafkaLogLevel::Info);
    config
}

impl Producers {
    /// Makes the batching producer; it connects on its own.
    ///
    /// # Errors
    /// librdkafka refuses a setting.
    pub(crate) fn new(settings: ClientConfig, reports: UnboundedSender<Report>) -> Result<Self, KafkaError> {
        let context = Context { generation: 0, reports: reports.clone() };
        let batching = settings.create_with_context(context)?;
        Ok(Self { settings, reports, generation: 0, batching, alone: None })
    }

    /// Number of the present producers; reports of earlier ones are of no interest.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Hands a row over. It is in the queue when this returns; its fate comes as a [`Report`].
    ///
    /// # Errors
    /// The record cannot even be queued.
    pub(crate) fn send(
        &mut self,
        row: &Row,
        alone: bool,
        ce_source: &str,
        span: Option<SendSpan>,
    ) -> Result<(), KafkaError> {
        let producer = match (alone, &mut self.alone) {
            (false, _) => &self.batching,
            (true, Some(alone)) => alone,
            (true, none) => {
                // Rule: a row is dead only after it failed alone. The error of a batch that is too large names
                // every record in it, so a suspect goes through a producer whose batches hold one record.
                let mut settings = self.settings.clone();
                settings.set("batch.num.messages", "1");
                let context = Context { generation: self.generation, reports: self.reports.clone() };
                none.insert(settings.create_with_context(context)?)
            }
        };
        let record = BaseRecord::with_opaque_to(&row.key.topic, Box::new(Ticket { id: row.id, span }))
            .key(row.key.key.as_str())
            .payload(row.payload.as_slice())
            .headers(record::headers(row, ce_source));
        producer.send(record).map_err(|(error, refused)| {
            record::end(refused.delivery_opaque.span, Err(&error.to_string()));
            error
        })
    }

    /// Replaces the producers by new ones. The old ones come back: dropping them purges what they still have, and
    /// blocks.
    ///
    /// # Errors
    /// librdkafka refuses a setting.
    pub(crate) fn rebuild(&mut self) -> Result<Discarded, KafkaError> {
        let context = Context { generation: self.generation + 1, reports: self.reports.clone() };
        let fresh = self.settings.create_with_context(context)?;
        self.generation += 1;
        Ok(Discarded { batching: std::mem::replace(&mut self.batching, fresh), alone: self.alone.take() })
    }

    /// Takes the producers apart for the end.
    pub(crate) fn discard(self) -> Discarded {
        Discarded { batching: self.batching, alone: self.alone }
    }

    /// Whether a producer said that it is of no use any more.
    pub(crate) fn is_fatal(&self) -> bool {
        let alone = self.alone.as_ref().and_then(|alone| alone.client().fatal_error());
        self.batching.client().fatal_error().or(alone).is_some()
    }

    /// Asks the cluster, or whether one topic can be written; a blocking call for another thread.
    pub(crate) fn ask(
        &self,
        topic: Option<String>,
    ) -> impl FnOnce() -> Result<(), RDKafkaErrorCode> + Send + 'static {
        let (batching, alone) = (self.batching.clone(), self.alone.clone());
        move || {
            if let (Some(topic), Some(alone)) = (&topic, &alone) {
                metadata(alone, Some(topic))?;
            }
            metadata(&batching, topic.as_deref())
        }
    }
}

fn metadata(producer: &Threaded, topic: Option<&str>) -> Result<(), RDKafkaErrorCode> {
    let answer = producer.client().fetch_metadata(topic, METADATA);
    let metadata = answer.map_err(|e| e.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown))?;
    let Some(name) = topic else { return Ok(()) };
    let found = metadata.topics().iter().find(|t| t.name() == name);
    match found.map(|t| (t.error(), t.partitions().len())) {
        Some((None, 1..)) => Ok(()),
        Some((Some(error), _)) => Err(error.into()),
        _ => Err(RDKafkaErrorCode::UnknownTopicOrPartition),
    }
}

/// Producers that are no longer used.
pub(crate) struct Discarded {
    batching: Threaded,
    alone: Option<Threaded>,
}

impl fmt::Debug for Discarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Discarded")
    }
}

impl Discarded {
    /// Purges and drops them. Blocks: for a thread that may.
    pub(crate) fn end(self) {
        // A clone may still wait for metadata elsewhere; nothing must leave the queue meanwhile.
        let all = PurgeConfig::default().queue().inflight();
        for producer in self.alone.into_iter().chain([self.batching]) {
            producer.purge(all);
            drop(producer);
        }
    }
}
