//! What tables and topics hold at a moment at which nothing runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use chrono::{DateTime, Utc};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use sqlx::PgPool;
use tokio::time::sleep;
use uuid::Uuid;
use waybill_consumer::{dead_letter_topic, replay_topic};
use waybill_event::{Event, ReplayOutcome, headers};
use waybill_testkit::topics::Record;

use super::rig::{PARTITIONS, Rig};
use crate::worker::{STRICT, TOPIC};

/// Everything that a checker looks at.
#[derive(Debug, Default)]
pub(crate) struct World {
    /// Records of the source, in order of partition and offset: what was really produced.
    pub(crate) source: Vec<Record>,
    pub(crate) groups: Vec<Group>,
}

/// What there is of one group.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Without prefix.
    pub(crate) name: String,
    /// Whether it promises the order of keys.
    pub(crate) strict: bool,
    /// In the order of the writes.
    pub(crate) effects: Vec<Effect>,
    pub(crate) inbox: HashMap<Uuid, Row>,
    pub(crate) parked: Vec<Parked>,
    /// Copies at or beyond the committed offset.
    pub(crate) pending: HashMap<Uuid, Vec<Where>>,
    /// What lies on the retry topics, read or not.
    pub(crate) retries: Vec<Record>,
    pub(crate) replays: Vec<Record>,
    pub(crate) dead_letters: Vec<Record>,
    pub(crate) outcomes: Vec<ReplayOutcome>,
}

#[derive(Debug, Clone, PartialEq, sqlx::FromRow)]
pub(crate) struct Effect {
    pub(crate) seq: i64,
    pub(crate) message_id: Uuid,
    pub(crate) key: Option<String>,
    pub(crate) worker: i32,
    pub(crate) attempt: i32,
    pub(crate) previous: Option<i64>,
    pub(crate) due_at: Option<DateTime<Utc>>,
    pub(crate) handled_at: DateTime<Utc>,
}

/// A row of the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) done: bool,
    pub(crate) replay: Option<Uuid>,
}

/// A row of the park.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub(crate) struct Parked {
    pub(crate) message_id: Uuid,
    pub(crate) replay_id: Option<Uuid>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    Source,
    Retry,
    Replay,
}

/// A partition of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    /// Without prefix.
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) end: i64,
    /// The next offset to be read.
    pub(crate) committed: i64,
}

/// `ce_id`, which every record of a run has.
pub(crate) fn id(record: &Record) -> Uuid {
    record.header(headers::CE_ID).and_then(|id| Uuid::parse_str(id).ok()).unwrap_or_default()
}

pub(crate) fn replay_id(record: &Record) -> Option<Uuid> {
    Uuid::parse_str(record.header(headers::REPLAY_ID)?).ok()
}

impl World {
    pub(crate) async fn read(rig: &Rig) -> anyhow::Result<Self> {
        let source = rig.topics.read(TOPIC).await;
        let told = rig.topics.read(ReplayOutcome::TOPIC).await;
        let told: Vec<ReplayOutcome> = told
            .iter()
            .map(|record| waybill_event::decode(record.value.as_deref().unwrap_or_default()))
            .collect::<Result<_, _>>()?;
        let mut groups = Vec::new();
        for name in &rig.groups {
            let mut group = Group::read(rig, name, &source).await?;
            let full = rig.topics.name(name);
            group.outcomes = told.iter().filter(|told| told.consumer_group == full).cloned().collect();
            groups.push(group);
        }
        Ok(Self { source, groups })
    }
}

impl Group {
    async fn read(rig: &Rig, name: &str, source: &[Record]) -> anyhow::Result<Self> {
        let (topics, pool) = (&rig.topics, &rig.database.pool);
        let mut group = Self { name: name.to_owned(), strict: name == STRICT, ..Self::default() };
        group.effects = sqlx::query_as(
            "select seq, message_id, key, worker, attempt, previous, due_at, handled_at from effect
             where consumer_group = $1 order by seq",
        )
        .bind(name)
        .fetch_all(pool)
        .await?;
        let full = topics.name(name);
        let rows: Vec<(Uuid, bool, Option<Uuid>)> = sqlx::query_as(
            "select message_id, outcome = 'done', replay_id from messaging.processed_message
             where consumer_group = $1",
        )
        .bind(&full)
        .fetch_all(pool)
        .await?;
        group.inbox = rows.into_iter().map(|(id, done, replay)| (id, Row { done, replay })).collect();
        group.parked = parked(pool, &full).await?;
        group.dead_letters = topics.read(&dead_letter_topic("", TOPIC, name)).await;
        let positions = positions(rig, name).await?;
        let replays = replay_topic("", TOPIC, name);
        for topic in rig.side_topics(name) {
            let records = topics.read(&topic).await;
            if topic == replays {
                group.wait(&records, &topic, Where::Replay, &positions);
                group.replays = records;
            } else {
                group.wait(&records, &topic, Where::Retry, &positions);
                group.retries.extend(records);
            }
        }
        group.wait(source, TOPIC, Where::Source, &positions);
        Ok(group)
    }

    /// Notes what of a topic the group is still to read.
    fn wait(&mut self, records: &[Record], topic: &str, place: Where, positions: &[Position]) {
        let next: HashMap<i32, i64> = positions
            .iter()
            .filter(|position| position.topic == topic)
            .map(|position| (position.partition, position.committed))
            .collect();
        for record in records.iter().filter(|record| record.offset >= next[&record.partition]) {
            self.pending.entry(id(record)).or_default().push(place);
        }
    }
}

async fn parked(pool: &PgPool, group: &str) -> Result<Vec<Parked>, sqlx::Error> {
    sqlx::query_as("select message_id, replay_id from messaging.parked_message where consumer_group = $1")
        .bind(group)
        .fetch_all(pool)
        .await
}

/// Where a group stands in each partition that it reads. Asked again while the broker is still coming up.
pub(crate) async fn positions(rig: &Rig, group: &str) -> anyhow::Result<Vec<Position>> {
    let topics = &rig.topics;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (bootstrap, prefix) = (topics.bootstrap.clone(), topics.prefix.clone());
        let (full, names) = (topics.name(group), rig.side_topics(group));
        let ask = move || ask_positions(&bootstrap, &prefix, &full, names);
        match tokio::task::spawn_blocking(ask).await.context("asks")? {
            Ok(positions) => return Ok(positions),
            Err(error) if Instant::now() >= deadline => return Err(error.into()),
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

fn ask_positions(
    bootstrap: &str,
    prefix: &str,
    group: &str,
    mut names: Vec<String>,
) -> rdkafka::error::KafkaResult<Vec<Position>> {
    const TIMEOUT: Duration = Duration::from_secs(10);
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("group.id", group);
    let client: BaseConsumer = config.create()?;
    names.push(TOPIC.to_owned());
    let mut list = TopicPartitionList::new();
    for name in &names {
        list.add_partition_range(&format!("{prefix}{name}"), 0, PARTITIONS - 1);
    }
    let committed = client.committed_offsets(list, TIMEOUT)?;
    let mut positions = Vec::new();
    for element in committed.elements() {
        let (low, end) = client.fetch_watermarks(element.topic(), element.partition(), TIMEOUT)?;
        let committed = match element.offset() {
            Offset::Offset(offset) => offset,
            _ => low,
        };
        let topic = element.topic().strip_prefix(prefix).unwrap_or(element.topic()).to_owned();
        positions.push(Position { topic, partition: element.partition(), end, committed });
    }
    Ok(positions)
}

/// Waits until every partition can be read again after the broker's return.
pub(crate) async fn readable(rig: &Rig) -> anyhow::Result<()> {
    let dead = rig.groups.iter().map(|group| dead_letter_topic("", TOPIC, group));
    let names = dead.chain([ReplayOutcome::TOPIC.to_owned()]).map(|name| rig.topics.name(&name));
    let names: Vec<String> = names.collect();
    for group in &rig.groups {
        positions(rig, group).await?;
    }
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &rig.topics.bootstrap);
    let client: Arc<BaseConsumer> = Arc::new(config.create()?);
    let deadline = Instant::now() + Duration::from_secs(30);
    for (name, partition) in names.iter().flat_map(|name| (0..PARTITIONS).map(move |p| (name, p))) {
        loop {
            let (client, topic) = (Arc::clone(&client), name.clone());
            let look = move || client.fetch_watermarks(&topic, partition, Duration::from_secs(10));
            match tokio::task::spawn_blocking(look).await.context("looks")? {
                Ok(_) => break,
                Err(error) => anyhow::ensure!(Instant::now() < deadline, "{name}/{partition}: {error}"),
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

/// What is still to be done: partitions with unread records, and the park.
pub(crate) async fn left(rig: &Rig) -> anyhow::Result<Vec<String>> {
    let mut left = Vec::new();
    for group in &rig.groups {
        let behind = positions(rig, group).await?;
        let behind = behind.into_iter().filter(|position| position.committed < position.end);
        left.extend(behind.map(|p| {
            format!(
                "{group}: {} {}/{} at {} of {}",
                p.end - p.committed,
                p.topic,
                p.partition,
                p.committed,
                p.end
            )
        }));
        let parked = parked(&rig.database.pool, &rig.topics.name(group)).await?.len();
        if parked > 0 {
            left.push(format!("{group}: {parked} parked"));
        }
    }
    Ok(left)
}
