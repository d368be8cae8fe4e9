//! What a run has already left on the replay topics: read when a process died with records on their way.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::producer::Producer;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use uuid::Uuid;

use super::send::Sender;
use crate::index::{Letter, Raw};

/// Longest wait for the broker, for one answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Topic, partition, offset.
pub(super) type Floor = (String, i32, i64);

/// Where these topics end now.
pub(super) async fn ends(sender: &Sender, topics: HashSet<String>) -> anyhow::Result<Vec<Floor>> {
    let sender = sender.clone();
    let asked = tokio::task::spawn_blocking(move || -> Result<Vec<Floor>, KafkaError> {
        let producer = sender.producer()?;
        let client = producer.client();
        let mut floors = Vec::new();
        for name in topics {
            let metadata = client.fetch_metadata(Some(&name), TIMEOUT)?;
            let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
            for partition in partitions {
                let (_, end) = client.fetch_watermarks(&name, partition.id(), TIMEOUT)?;
                floors.push((name.clone(), partition.id(), end));
            }
        }
        Ok(floors)
    });
    Ok(asked.await??)
}

/// Topic and message id of every record of this run behind the floors.
pub(super) async fn sent(
    sender: &Sender,
    replay_id: Uuid,
    floors: Vec<Floor>,
) -> anyhow::Result<HashSet<(String, Uuid)>> {
    let mut config = sender.client();
    config
        .set("group.id", format!("console-look-{replay_id}"))
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("queued.max.messages.kbytes", "8192");
    let look = move || -> anyhow::Result<HashSet<(String, Uuid)>> {
        let reader: BaseConsumer = config.create()?;
        let mut list = TopicPartitionList::new();
        let mut open = HashMap::new();
        for (topic, partition, floor) in floors {
            let (low, high) = reader.fetch_watermarks(&topic, partition, TIMEOUT)?;
            let from = floor.max(low);
            if from < high {
                list.add_partition_offset(&topic, partition, Offset::Offset(from))?;
                open.insert((topic, partition), high);
            }
        }
        reader.assign(&list)?;
        let mut found = HashSet::new();
        while !open.is_empty() {
            let Some(read) = reader.poll(TIMEOUT) else {
                // Markers of transactions are no records: only the position tells that the end is reached.
                let position = reader.position()?;
                let before = open.len();
                open.retain(|(topic, partition), high| {
                    let at = position.find_partition(topic, *partition).map(|element| element.offset());
                    !matches!(at, Some(Offset::Offset(at)) if at >= *high)
                });
                anyhow::ensure!(open.len() < before, "the broker gives no records");
                continue;
            };
            let message = read?;
            let place = (message.topic().to_owned(), message.partition());
            if open.get(&place).is_some_and(|end| message.offset() + 1 >= *end) {
                open.remove(&place);
            }
            let letter = Letter::read(&Raw::of(&message));
            if letter.replay_id == Some(replay_id) {
                found.insert((place.0, letter.message_id));
            }
        }
        Ok(found)
    };
    tokio::task::spawn_blocking(look).await?
}
