//! Whether replay topics exist.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use rdkafka::error::KafkaResult;
use rdkafka::producer::Producer;

use crate::replays::Sender;

/// Longest wait for the broker.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Partitions of those of `topics` that exist.
pub(super) async fn partitions(
    sender: &Sender,
    topics: BTreeSet<String>,
) -> anyhow::Result<HashMap<String, i32>> {
    let sender = sender.clone();
    let asked = tokio::task::spawn_blocking(move || -> KafkaResult<HashMap<String, i32>> {
        let producer = sender.producer()?;
        let mut found = HashMap::new();
        for name in topics {
            let metadata = producer.client().fetch_metadata(Some(&name), TIMEOUT)?;
            let topic = metadata.topics().iter().find(|topic| topic.name() == name);
            let count = topic.filter(|topic| topic.error().is_none()).map_or(0, |t| t.partitions().len());
            if count > 0 {
                found.insert(name, i32::try_from(count).unwrap_or(i32::MAX));
            }
        }
        Ok(found)
    });
    Ok(asked.await??)
}
