//! What happens to the records of one partition: decode, run, bury, move the offset; again until none is left.

use std::{sync::Arc, time::Instant};

use chrono::Utc;
use tokio_util::sync::CancellationToken;
use waybill_event::{Event, MessageId};

use crate::{
    Message,
    backoff::Backoff,
    batch::{Care, Dead, Round, Runner},
    dead_letter::DeadLetters,
    metrics,
    record::{Record, Undecodable},
    status::PartitionState,
    store,
    work::Work,
};

/// Longest pause between two looks at a database that is down.
const DATABASE_RETRY_MAX: std::time::Duration = std::time::Duration::from_secs(2);

/// Runs the batches of one group's partitions.
pub(crate) struct Engine {
    pub(crate) runner: Runner,
    pub(crate) dead_letters: DeadLetters,
}

/// One assigned partition, as its worker sees it.
pub(crate) struct Assignment {
    pub(crate) state: Arc<PartitionState>,
    /// Name of the dead-letter topic.
    pub(crate) dead_letter_topic: Arc<str>,
    /// Cancelled when the partition is revoked or the consumer stops.
    pub(crate) stop: CancellationToken,
    /// Says that everything before this offset is finished.
    pub(crate) advance: Box<dyn Fn(i64) + Send + Sync>,
    pub(crate) care: Care,
}

/// The partition was taken away, or the consumer stops; what was not finished will be delivered again.
#[derive(Debug)]
pub(crate) struct Stopped;

/// Records of one partition on their way.
struct Batch<E> {
    messages: Vec<Message<E>>,
    /// Undecodable ones and messages that failed for good, to be published.
    dead: Vec<Dead>,
    /// From the first record with an unknown schema on.
    tail: Vec<Arc<Record>>,
    end: i64,
}

impl Engine {
    pub(crate) async fn process<W: Work>(
        &self,
        work: W,
        records: Vec<Record>,
        assignment: &mut Assignment,
    ) -> Result<(), Stopped> {
        let settings = &self.runner.settings;
        let Some(end) = records.last().map(|record| record.offset + 1) else { return Ok(()) };
        self.runner.metrics.batch(records.len(), &assignment.state.topic, &self.runner.group);
        let tail = records.into_iter().map(Arc::new).collect();
        let mut batch = Batch::<W::Event> { messages: Vec::new(), dead: Vec::new(), tail, end };
        let mut retry = Backoff::new(settings.retry_min, settings.retry_max);
        let mut database = Backoff::new(settings.retry_min, settings.retry_max.min(DATABASE_RETRY_MAX));
        let (mut unknown_since, mut reached) = (None, i64::MIN);
        batch.decode(false);
        loop {
            // Before `begin`: a revoked partition must not start another transaction.
            if assignment.stop.is_cancelled() {
                return Err(Stopped);
            }
            assignment.state.set_oldest(batch.oldest());
            let mut failed = Vec::new();
            let round =
                self.runner.round(&work, &mut batch.messages, &mut failed, &mut assignment.care).await;
            batch.dead.extend(failed);
            let next = batch.next_offset();
            if next > reached {
                reached = next;
                retry.reset();
                database.reset();
            }
            self.bury(batch.take_dead_before(next), assignment).await?;
            (assignment.advance)(next);
            let (backoff, reason, error) = match round {
                Round::Blocked(failed) => {
                    log_blocked(batch.messages.first(), &failed.failure);
                    (&mut retry, metrics::TRANSIENT, format!("{:#}", failed.failure.error()))
                }
                Round::Fault(error) => {
                    tracing::warn!(partition = ?assignment.state, error = format!("{error:#}"), "database failed");
                    (&mut database, metrics::DATABASE, format!("{error:#}"))
                }
                Round::Clear if batch.tail.is_empty() => break,
                Round::Clear => {
                    // The next release may know the schema; two minutes later nobody is coming any more.
                    let since = *unknown_since.get_or_insert_with(Instant::now);
                    let patient = since.elapsed() < settings.schema_patience;
                    if !patient {
                        unknown_since = None;
                    }
                    let Some(error) = batch.decode(!patient) else {
                        assignment.state.unblock();
                        continue;
                    };
                    (&mut retry, metrics::UNKNOWN_SCHEMA, error)
                }
            };
            assignment.state.block(reason, error);
            let waited = backoff.wait(&assignment.stop).await;
            if !waited {
                return Err(Stopped);
            }
        }
        assignment.state.unblock();
        assignment.state.set_oldest(None);
        Ok(())
    }

    /// Dead letter acknowledged, then the `dead` row; the caller moves the offset after both.
    async fn bury(&self, dead: Vec<Dead>, assignment: &Assignment) -> Result<(), Stopped> {
        if dead.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = dead.iter().map(|dead| dead.id.as_uuid()).collect();
        let (pool, group) = (&self.runner.pool, self.runner.group.as_str());
        // A redelivery meets its own `dead` row: the record is in the topic already.
        let known =
            self.insist(assignment, metrics::DATABASE, || store::already_dead(pool, group, &ids)).await?;
        let (topic, mut buried) = (&*assignment.dead_letter_topic, 0);
        for dead in dead.iter().filter(|dead| !known.contains(&dead.id.as_uuid())) {
            self.insist(assignment, metrics::DEAD_LETTER, || self.dead_letters.publish(topic, group, dead))
                .await?;
            log_dead(dead, topic);
            buried += 1;
        }
        self.insist(assignment, metrics::DATABASE, || store::mark_dead(pool, group, ids.clone())).await?;
        self.runner.metrics.count(metrics::DEAD, &assignment.state.topic, group, buried);
        self.runner.metrics.count(metrics::DUPLICATE, &assignment.state.topic, group, dead.len() - buried);
        Ok(())
    }

    /// Tries until it succeeds or the partition is stopped; meanwhile the partition is visibly blocked.
    async fn insist<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(
        &self,
        assignment: &Assignment,
        reason: &'static str,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, Stopped> {
        let settings = &self.runner.settings;
        let mut backoff = Backoff::new(settings.retry_min, settings.retry_max.min(DATABASE_RETRY_MAX));
        let mut blocked = false;
        loop {
            match attempt().await {
                Ok(value) => {
                    if blocked {
                        assignment.state.unblock();
                    }
                    return Ok(value);
                }
                Err(error) => {
                    tracing::warn!(partition = ?assignment.state, reason, %error, "blocked");
                    assignment.state.block(reason, error.to_string());
                    blocked = true;
                }
            }
            if !backoff.wait(&assignment.stop).await {
                return Err(Stopped);
            }
        }
    }
}

impl<E: Event> Batch<E> {
    /// Decodes the tail up to the next record with an unknown schema, whose error is returned. With `give_up` such a
    /// record at the very front is dead.
    fn decode(&mut self, mut give_up: bool) -> Option<String> {
        let mut decoded = 0;
        let mut stopped = None;
        for record in &self.tail {
            match record.decode::<E>() {
                Ok(message) => self.messages.push(message),
                Err(error) if error.unknown_schema && !std::mem::take(&mut give_up) => {
                    stopped = Some(error.text);
                    break;
                }
                Err(error) => self.dead.push(Dead::undecodable(record, error)),
            }
            decoded += 1;
        }
        self.tail.drain(..decoded);
        // Only a front that did not move is a reason to wait.
        stopped.filter(|_| decoded == 0)
    }

    /// Everything before it is finished, once the dead letters before it are buried.
    fn next_offset(&self) -> i64 {
        let first_message = self.messages.first().map(Message::offset);
        let first_tail = self.tail.first().map(|record| record.offset);
        first_message.or(first_tail).unwrap_or(self.end)
    }

    /// Nothing behind a message that is retried is dealt with first, not even as a dead letter.
    fn take_dead_before(&mut self, offset: i64) -> Vec<Dead> {
        let (mut before, after) = std::mem::take(&mut self.dead)
            .into_iter()
            .partition::<Vec<_>, _>(|dead| dead.record.offset < offset);
        self.dead = after;
        before.sort_by_key(|dead| dead.record.offset);
        before
    }

    fn oldest(&self) -> Option<i64> {
        let dead = self.dead.first().map(|dead| &dead.record);
        let message = self.messages.first().map(Message::record);
        let first =
            [dead, message, self.tail.first()].into_iter().flatten().min_by_key(|record| record.offset);
        first.and_then(|record| record.timestamp_ms)
    }
}

impl Dead {
    fn undecodable(record: &Arc<Record>, error: Undecodable) -> Self {
        Self {
            record: Arc::clone(record),
            id: record.id(),
            attempt: 1,
            code: error.code.to_owned(),
            class: "decode",
            text: error.text,
            failed_at: Utc::now(),
            traceparent: None,
        }
    }
}

fn log_blocked<E>(message: Option<&Message<E>>, failure: &crate::Failure) {
    if let Some(message) = message {
        tracing::warn!(
            message_id = %message.id,
            topic = message.topic(),
            partition = message.partition(),
            offset = message.offset(),
            attempts = message.attempt - 1,
            code = failure.code(),
            error = format!("{:#}", failure.error()),
            "message failed and is tried again"
        );
    }
}

fn log_dead(dead: &Dead, dead_letter_topic: &str) {
    let id: MessageId = dead.id;
    tracing::error!(
        message_id = %id,
        topic = &*dead.record.topic,
        partition = dead.record.partition,
        offset = dead.record.offset,
        code = dead.code,
        error = dead.text,
        dead_letter_topic,
        "message is dead-lettered"
    );
}
