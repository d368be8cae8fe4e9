//! Operators who repair causes and replay dead letters, without asking each other.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use sqlx::PgPool;
use tokio::sync::RwLock;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_consumer::{dead_letter_topic, replay_topic};
use waybill_event::headers;
use waybill_testkit::Topics;
use waybill_testkit::topics::Record;

use super::world::id;
use crate::chaos::between;
use crate::worker::TOPIC;

/// Replays of one message beyond which an operator gives up.
const MOST_REPLAYS: u32 = 4;
/// Dead letters at which an operator looks, the newest: both look at the same.
const SCREEN: usize = 40;

/// One of them.
pub(crate) struct Operator {
    pub(crate) name: &'static str,
    pub(crate) topics: Arc<Topics>,
    pub(crate) pool: PgPool,
    pub(crate) groups: Vec<&'static str>,
    pub(crate) dice: StdRng,
    /// Held for writing while nothing may be touched.
    pub(crate) desk: Arc<RwLock<()>>,
}

impl Operator {
    /// Works until told to stop; the number of replays sent.
    pub(crate) async fn work(mut self, stop: CancellationToken) -> anyhow::Result<usize> {
        let (producer, mut sent) = (self.topics.producer(), 0);
        loop {
            let pause = between(&mut self.dice, 500, 3_000);
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return Ok(sent);
            }
            let desk = Arc::clone(&self.desk);
            let _at_work = desk.read().await;
            let Some(group) = self.groups.choose(&mut self.dice).copied() else { return Ok(sent) };
            let dead = self.topics.read(&dead_letter_topic("", TOPIC, group)).await;
            let mut screen: Vec<_> = dead.iter().collect();
            screen.sort_by_key(|record| record.timestamp);
            let screen = &screen[screen.len().saturating_sub(SCREEN)..];
            let count = self.dice.random_range(1..=20);
            let chosen: Vec<_> = screen.choose_multiple(&mut self.dice, count).copied().collect();
            let run = Uuid::now_v7();
            for record in chosen {
                sent += usize::from(self.replay(&producer, group, record, run).await?);
            }
        }
    }

    /// Maybe repairs its cause first.
    async fn replay(
        &mut self,
        producer: &FutureProducer,
        group: &str,
        record: &Record,
        run: Uuid,
    ) -> anyhow::Result<bool> {
        if count(record) >= MOST_REPLAYS {
            return Ok(false);
        }
        // What ends processes is rarely replayed as it is.
        let ends = record.header(headers::ERROR_CLASS) == Some("crash");
        if self.dice.random_bool(if ends { 0.9 } else { 0.6 }) {
            repair(&self.pool, &[id(record)]).await?;
        }
        replay(producer, &self.topics, group, record, run, self.name).await?;
        Ok(true)
    }
}

/// Takes away what made these messages fail.
pub(crate) async fn repair(pool: &PgPool, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into repaired select distinct id from unnest($1::uuid[]) as id on conflict do nothing",
    )
    .bind(ids)
    .execute(pool)
    .await
    .map(drop)
}

/// Sends a dead letter as the console does.
pub(crate) async fn replay(
    producer: &FutureProducer,
    topics: &Topics,
    group: &str,
    dead: &Record,
    run: Uuid,
    by: &str,
) -> anyhow::Result<()> {
    let keep = |name: &str| {
        !name.starts_with("waybill-")
            || name.starts_with("waybill-origin-")
            || name == headers::LAST_TRACEPARENT
    };
    let (run, times) = (run.to_string(), (count(dead) + 1).to_string());
    let list =
        dead.headers.iter().filter(|(name, _)| keep(name)).fold(OwnedHeaders::new(), |list, (key, value)| {
            list.insert(Header { key, value: value.as_deref() })
        });
    let list =
        [(headers::REPLAY_ID, run.as_str()), (headers::REPLAYED_BY, by), (headers::REPLAY_COUNT, &times)]
            .into_iter()
            .fold(list, |list, (key, value)| list.insert(Header { key, value: Some(value.as_bytes()) }));
    let name = topics.name(&replay_topic("", TOPIC, group));
    let mut record = FutureRecord::<[u8], [u8]>::to(&name).partition(dead.partition).headers(list);
    (record.key, record.payload) = (dead.key.as_deref(), dead.value.as_deref());
    producer.send(record, Duration::from_secs(60)).await.map_err(|(error, _)| error)?;
    Ok(())
}

fn count(record: &Record) -> u32 {
    record.header(headers::REPLAY_COUNT).and_then(|text| text.parse().ok()).unwrap_or(0)
}
