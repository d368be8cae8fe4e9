//! The index: every dead-letter topic and the topic of outcomes, read into the database in batches.
//!
//! A record is in the index once, by topic, partition, offset and time; offsets are committed after the database. No
//! record stops it: what cannot be understood is kept raw, and what the database refuses is kept without what came out
//! of its headers.

mod batch;
mod consumer;
mod letter;
mod merge;
mod record;
mod spring;
mod store;
mod topics;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use waybill_event::ReplayOutcome;
use waybill_service::jobs::{Job, Run};

use crate::metrics::Metrics;
use crate::{Names, Settings};

pub use batch::{Batch, Error, write};
pub use consumer::Link;
pub use letter::{Dialect, Letter, Place, item_id};
pub(crate) use record::from_json;
pub use record::{Raw, RawHeader};
pub(crate) use spring::number as spring_number;
pub use topics::Registry;

/// Name of the job that forgets what the topics have forgotten, for `JOBS`.
pub const PURGE: &str = "purge-console";
/// Most records of a batch.
const BATCH: usize = 500;
/// Most bytes of a batch; a record on top of it.
const BATCH_BYTES: usize = 4 << 20;
/// How long a batch waits for more.
const WAIT: Duration = Duration::from_millis(20);
/// Between two tries of a batch that the database does not take.
const RETRY: Duration = Duration::from_millis(500);

/// The reading side.
#[derive(Debug)]
pub struct Index {
    pool: PgPool,
    client: Vec<(String, String)>,
    names: Names,
    settings: Settings,
    metrics: Metrics,
    link: Link,
}

impl Index {
    /// Not yet reading.
    pub fn new(
        pool: PgPool,
        client: Vec<(String, String)>,
        names: Names,
        settings: Settings,
        metrics: Metrics,
    ) -> Self {
        Self { pool, client, names, settings, metrics, link: Link::default() }
    }

    /// Whether it reads.
    pub fn link(&self) -> Link {
        self.link.clone()
    }

    /// Reads until `shutdown`; what was read and not written then is read again.
    ///
    /// # Errors
    /// The client cannot be made, or refuses a pattern.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let consumer = consumer::subscribe(&self.client, &self.names, &self.settings, self.link.clone());
        let patterns = &self.settings.dlt_patterns;
        let consumer = consumer
            .with_context(|| format!("nothing can be read with CONSOLE_DLT_PATTERNS {patterns:?}"))?;
        let outcomes = self.names.outcomes();
        while !shutdown.is_cancelled() {
            let mut offsets = TopicPartitionList::new();
            let batch = tokio::select! {
                batch = collect(&consumer, &outcomes, &mut offsets) => batch,
                () = shutdown.cancelled() => break,
            };
            if batch.len() == 0 && offsets.count() == 0 {
                continue;
            }
            self.link.heard();
            let started = Instant::now();
            let written = tokio::select! {
                written = put(&self.pool, batch) => written,
                () = shutdown.cancelled() => break,
            };
            self.metrics.indexed(written, started.elapsed());
            if let Err(error) = consumer.commit(&offsets, CommitMode::Async) {
                tracing::debug!(%error, "offsets of the index are not committed");
            }
        }
        Ok(())
    }
}

/// The next batch, with the offsets after it.
async fn collect(consumer: &StreamConsumer<Link>, outcomes: &str, offsets: &mut TopicPartitionList) -> Batch {
    let mut batch = Batch::default();
    let mut deadline = None;
    while batch.len() < BATCH && batch.bytes < BATCH_BYTES {
        let next = match deadline {
            None => consumer.recv().await,
            Some(deadline) => match tokio::time::timeout_at(deadline, consumer.recv()).await {
                Ok(next) => next,
                Err(_) => break,
            },
        };
        let message = match next {
            Ok(message) => message,
            Err(error) => {
                // Told with its partition by the link.
                if !consumer::cannot_decompress(&error) {
                    tracing::warn!(%error, "index consumer");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                break;
            }
        };
        deadline.get_or_insert_with(|| tokio::time::Instant::now() + WAIT);
        let (topic, partition) = (message.topic(), message.partition());
        let after = Offset::Offset(message.offset() + 1);
        if offsets.set_partition_offset(topic, partition, after).is_err()
            && let Err(error) = offsets.add_partition_offset(topic, partition, after)
        {
            tracing::debug!(%error, "offset cannot be kept");
        }
        if topic == outcomes {
            match message.payload().map(waybill_event::decode::<ReplayOutcome>) {
                Some(Ok(outcome)) => batch.outcomes.push(outcome),
                // Anybody may write there; what is no outcome settles nothing.
                Some(Err(error)) => {
                    tracing::warn!(%error, partition, offset = message.offset(), "not an outcome")
                }
                None => {}
            }
        } else {
            batch.push(Raw::of(&message));
        }
    }
    batch
}

/// Writes a batch, however often it takes. One that the database refuses for what is in it is taken apart.
async fn put(pool: &PgPool, batch: Batch) -> u64 {
    match persist(pool, &batch).await {
        Ok(written) => written,
        Err(refused) => {
            tracing::warn!(
                error = &refused as &dyn std::error::Error,
                "a batch is refused; its records go one by one"
            );
            let mut written = 0;
            for (raw, letter) in batch.letters {
                written += alone(pool, raw, letter).await;
            }
            for outcome in batch.outcomes {
                let one = Batch { outcomes: vec![outcome], ..Batch::default() };
                if let Err(error) = persist(pool, &one).await {
                    tracing::error!(error = &error as &dyn std::error::Error, "an outcome is refused");
                }
            }
            written
        }
    }
}

async fn alone(pool: &PgPool, raw: Raw, letter: Letter) -> u64 {
    let one = Batch { letters: vec![(raw, letter)], ..Batch::default() };
    if let Ok(written) = persist(pool, &one).await {
        return written;
    }
    let letters = one.letters.into_iter().map(|(raw, _)| {
        let letter = Letter::unread(&raw);
        (raw, letter)
    });
    let unread = Batch { letters: letters.collect(), ..Batch::default() };
    persist(pool, &unread).await.unwrap_or_else(|error| {
        let record = unread.letters.first().map(|(raw, _)| raw);
        tracing::error!(
            ?record,
            error = &error as &dyn std::error::Error,
            "a dead letter is not in the index"
        );
        0
    })
}

/// Tries until the database answers. An error is its refusal of what is in the batch.
async fn persist(pool: &PgPool, batch: &Batch) -> Result<u64, sqlx::Error> {
    loop {
        match write(pool, batch).await {
            Ok(written) => return Ok(written),
            Err(Error::Raced) => {}
            Err(Error::Database(error)) if is_refusal(&error) => return Err(error),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the index waits for the database");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Class 22 is data, 23 constraints, 54 limits: the same batch is refused again.
fn is_refusal(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    let class = code.as_deref().and_then(|code| code.get(..2));
    matches!(class, Some("22" | "23" | "54"))
        || matches!(error, sqlx::Error::Encode(_) | sqlx::Error::Protocol(_))
}

/// Forgets what the topics have forgotten; hourly. When it is off, lists show letters that are gone.
pub fn purge(pool: PgPool) -> Job {
    Job::new(PURGE, Duration::from_secs(3600), move |run: Run| {
        let pool = pool.clone();
        async move {
            let mut purged = 0;
            while !run.is_stopped() {
                match store::purge_items(&pool).await? + store::purge_rest(&pool).await? {
                    0 => break,
                    step => purged += step,
                }
            }
            Ok::<_, sqlx::Error>(purged)
        }
    })
}
