//! Topics of one's own, behind a prefix, on the real broker.

use std::collections::HashMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use uuid::Uuid;
use waybill_event::Event;
use waybill_event::headers;
use waybill_event::id::MessageId;
use waybill_event::trace::TraceContext;

use crate::environment::environment;

/// Partitions of a test's topic unless it asks for another count.
pub const PARTITIONS: i32 = 4;

/// Topics that are deleted with this value.
#[derive(Debug)]
pub struct Topics {
    /// Goes before every topic and group.
    pub prefix: String,
    /// Kafka's `bootstrap.servers`.
    pub bootstrap: String,
    names: std::sync::Mutex<Vec<String>>,
}

/// A record as it lies on a topic.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Partition.
    pub partition: i32,
    /// Offset.
    pub offset: i64,
    /// Timestamp in milliseconds.
    pub timestamp: Option<i64>,
    /// Key; `None` is null.
    pub key: Option<Vec<u8>>,
    /// Value; `None` is null.
    pub value: Option<Vec<u8>>,
    /// Headers in their order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    /// A header's text; the last of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().rev().find(|(n, _)| n == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }

    /// The key as text.
    pub fn key_text(&self) -> String {
        String::from_utf8_lossy(self.key.as_deref().unwrap_or_default()).into_owned()
    }
}

impl Topics {
    /// A prefix of one's own without any topic yet.
    pub fn none() -> Self {
        Self::none_on(&environment().kafka_bootstrap)
    }

    /// The same on another broker.
    pub fn none_on(bootstrap: &str) -> Self {
        let prefix = format!("t{}.", &Uuid::new_v4().simple().to_string()[..12]);
        Self { prefix, bootstrap: bootstrap.into(), names: std::sync::Mutex::default() }
    }

    /// Topics of a running stack, to read and write; they are not deleted.
    pub fn existing(prefix: &str, bootstrap: &str) -> Self {
        Self { prefix: prefix.into(), bootstrap: bootstrap.into(), names: std::sync::Mutex::default() }
    }

    /// Topics behind a prefix of their own, with `partitions` partitions each.
    ///
    /// # Panics
    /// When the broker cannot be reached.
    pub async fn create(names: &[&str], partitions: i32) -> Self {
        let topics = Self::none();
        for name in names {
            topics.add(name, partitions, &[]).await;
        }
        topics
    }

    /// Adds a topic with settings such as `("max.message.bytes", "1000")`.
    ///
    /// # Panics
    /// When the broker refuses.
    pub async fn add(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let full = self.name(name);
        let mut topic = NewTopic::new(&full, partitions, TopicReplication::Fixed(1));
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let made = self.admin().create_topics([&topic], &patient()).await.expect("broker answers");
        for result in made {
            result.expect("topic is created");
        }
        self.names.lock().expect("not poisoned").push(full.clone());
        crate::eventually(async || {
            let metadata = self
                .reader()
                .fetch_metadata(Some(&full), Duration::from_secs(5))
                .map_err(|e| e.to_string())?;
            let led = metadata.topics()[0].partitions().iter().filter(|p| p.leader() >= 0).count();
            if led == partitions as usize { Ok(()) } else { Err(format!("{led} partitions have leaders")) }
        })
        .await;
    }

    /// The full name of a topic or group.
    pub fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Connection settings for a client.
    pub fn client_settings(&self) -> Vec<(String, String)> {
        vec![("bootstrap.servers".into(), self.bootstrap.clone())]
    }

    /// Produces an event as the relay would, with a fresh id; returns the id.
    ///
    /// # Panics
    /// When the broker refuses.
    pub async fn produce<E: Event>(&self, event: &E) -> MessageId {
        let id = MessageId::new();
        self.produce_as(event, id).await;
        id
    }

    /// Produces an event under a given id.
    ///
    /// # Panics
    /// When the broker refuses.
    pub async fn produce_as<E: Event>(&self, event: &E, id: MessageId) {
        let mut list = vec![
            (headers::CE_ID, id.to_string()),
            (headers::CE_TYPE, event.event_type()),
            (headers::CE_SOURCE, format!("/{}", E::AGGREGATE)),
            (headers::CE_SPECVERSION, "1.0".to_owned()),
            (headers::CE_TIME, waybill_event::time::ce_time(chrono::Utc::now())),
            (headers::CE_SUBJECT, event.key()),
            (headers::CONTENT_TYPE, "application/avro".to_owned()),
        ];
        if let Some(trace) = TraceContext::current() {
            list.push((headers::TRACEPARENT, trace.traceparent));
        }
        let value = waybill_event::encode(event).expect("event encodes");
        let list: Vec<_> = list.iter().map(|(name, value)| (*name, Some(value.as_bytes()))).collect();
        self.produce_raw(E::TOPIC, Some(event.key().as_bytes()), Some(&value), &list).await;
    }

    /// Produces any record; the partition is the key's.
    ///
    /// # Panics
    /// When the broker refuses.
    pub async fn produce_raw(
        &self,
        topic: &str,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) {
        let full = self.name(topic);
        let mut list = OwnedHeaders::new_with_capacity(headers.len());
        for (key, value) in headers {
            list = list.insert(Header { key, value: *value });
        }
        let mut record = FutureRecord::<[u8], [u8]>::to(&full).headers(list);
        record.key = key;
        record.payload = value;
        self.producer().send(record, Duration::from_secs(30)).await.expect("record is acknowledged");
    }

    /// A producer with the partitioner that every client of Waybill has.
    ///
    /// # Panics
    /// When librdkafka refuses its settings.
    pub fn producer(&self) -> FutureProducer {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.bootstrap)
            .set("partitioner", "murmur2_random")
            .set("message.max.bytes", "2097152")
            .set("linger.ms", "0");
        config.create().expect("producer")
    }

    /// Every record that lies on a topic now, in order of partition and offset.
    ///
    /// # Panics
    /// When the broker cannot be reached.
    pub async fn read(&self, topic: &str) -> Vec<Record> {
        let full = self.name(topic);
        let reader = self.reader();
        tokio::task::spawn_blocking(move || read_all(&reader, &full)).await.expect("reads")
    }

    /// The offset that a group has committed for a partition.
    ///
    /// # Panics
    /// When the broker cannot be reached.
    pub async fn committed(&self, group: &str, topic: &str, partition: i32) -> Option<i64> {
        let (group, topic, bootstrap) = (self.name(group), self.name(topic), self.bootstrap.clone());
        let read = move || {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", &bootstrap).set("group.id", &group);
            let consumer: BaseConsumer = config.create().expect("consumer");
            let mut list = TopicPartitionList::new();
            list.add_partition(&topic, partition);
            let committed =
                consumer.committed_offsets(list, Duration::from_secs(20)).expect("committed offsets");
            match committed.elements()[0].offset() {
                Offset::Offset(offset) => Some(offset),
                _ => None,
            }
        };
        tokio::task::spawn_blocking(read).await.expect("reads")
    }

    fn reader(&self) -> BaseConsumer {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.bootstrap)
            .set("group.id", "testkit")
            .set("enable.auto.commit", "false")
            .set("fetch.wait.max.ms", "20");
        config.create().expect("reader")
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        ClientConfig::new().set("bootstrap.servers", &self.bootstrap).create().expect("admin client")
    }
}

impl Drop for Topics {
    fn drop(&mut self) {
        let names = std::mem::take(self.names.get_mut().expect("not poisoned"));
        if names.is_empty() {
            return;
        }
        let admin = self.admin();
        // A thread with a runtime of its own: the test's runtime may be ending. What stays is harmless.
        let deleted = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            runtime.block_on(admin.delete_topics(&names, &patient()))?;
            Ok::<_, anyhow::Error>(())
        });
        drop(deleted.join());
    }
}

/// Whether a broker gives metadata.
pub(crate) fn answers(bootstrap: &str) -> Result<(), String> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    let client: BaseConsumer = config.create().map_err(|e| e.to_string())?;
    client.fetch_metadata(None, Duration::from_secs(2)).map(drop).map_err(|e| e.to_string())
}

fn patient() -> AdminOptions {
    AdminOptions::new()
        .operation_timeout(Some(Duration::from_secs(20)))
        .request_timeout(Some(Duration::from_secs(20)))
}

fn read_all(reader: &BaseConsumer, topic: &str) -> Vec<Record> {
    const TIMEOUT: Duration = Duration::from_secs(20);
    let metadata = reader.fetch_metadata(Some(topic), TIMEOUT).expect("metadata");
    let mut list = TopicPartitionList::new();
    let mut ends = HashMap::new();
    for partition in metadata.topics()[0].partitions() {
        let (low, high) = reader.fetch_watermarks(topic, partition.id(), TIMEOUT).expect("watermarks");
        if low < high {
            list.add_partition_offset(topic, partition.id(), Offset::Offset(low)).expect("offset");
            ends.insert(partition.id(), high);
        }
    }
    // All at once: an assignment for each partition would wait for a fetch each.
    reader.assign(&list).expect("assigns");
    let mut records = Vec::new();
    while !ends.is_empty() {
        let message = reader.poll(TIMEOUT).expect("the record is there").expect("the record can be read");
        // A partition that has been read to its end may go on: what came after the first look is not "now".
        let Some(end) = ends.get(&message.partition()) else { continue };
        if message.offset() + 1 >= *end {
            ends.remove(&message.partition());
        }
        records.push(record(&message));
    }
    records.sort_by_key(|record| (record.partition, record.offset));
    records
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        headers.iter().map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec))).collect()
    });
    Record {
        partition: message.partition(),
        offset: message.offset(),
        timestamp: message.timestamp().to_millis(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers,
    }
}
