//! The batch transaction: inbox, handlers, commit, and what happens when a handler fails.
//!
//! Works through the messages of one partition in order and says how far it came. It knows nothing of Kafka: dead
//! letters are handed back to be published, offsets are the caller's.

mod parking;
mod replay;
mod savepoints;
mod transaction;
mod verdict;

use std::{collections::HashSet, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use waybill_event::MessageId;

use crate::{
    Message,
    crash::{CRASH, CRASHES},
    line::{Again, Line},
    metrics::{self, Metrics},
    policy::Order,
    record::Record,
    settings::Settings,
    work::{self, Around, Failed, Work},
};
pub(crate) use replay::Replayed;
pub(crate) use verdict::Verdict;
use verdict::{Chunk, Fate, Trouble};

/// Class of what could not be decoded.
pub(crate) const DECODE: &str = "decode";
/// Class and code of a message beyond the horizon.
pub(crate) const STALE: &str = "stale";
/// Class of a failure that no retry mends.
pub(crate) const PERMANENT: &str = "permanent";
/// Class of a failure that a retry may mend; on a dead letter: attempts or deadline are used up.
pub(crate) const TRANSIENT: &str = "transient";
/// Class and code of a handler that panicked.
pub(crate) const PANIC: &str = "panic";

/// Runs batches of one group.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) pool: PgPool,
    /// With prefix: also the inbox's `consumer_group`.
    pub(crate) group: String,
    pub(crate) settings: Arc<Settings>,
    pub(crate) metrics: Metrics,
}

/// How transactions are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// No savepoint.
    Fast,
    /// Savepoints between small groups of messages.
    Savepoints,
    /// One message a transaction, so that whatever fails names its message.
    Single,
}

impl Mode {
    /// Messages in one transaction.
    const fn limit(self) -> usize {
        match self {
            Self::Fast | Self::Savepoints => usize::MAX,
            Self::Single => 1,
        }
    }
}

/// What a partition remembers from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct Care {
    /// How many batches are still to begin with savepoints.
    careful: u32,
    /// The first message left failed when it was tried last, and waits in place.
    held: bool,
}

/// A message or record that leaves its partition unhandled: for a retry topic, or as a dead letter.
#[derive(Debug)]
pub(crate) struct Fallen {
    pub(crate) record: Arc<Record>,
    pub(crate) id: MessageId,
    pub(crate) attempt: u32,
    pub(crate) code: String,
    /// One of [`DECODE`], [`PERMANENT`], [`TRANSIENT`], [`PANIC`], [`STALE`].
    pub(crate) class: &'static str,
    pub(crate) text: String,
    pub(crate) failed_at: DateTime<Utc>,
    /// Of the failed attempt's span.
    pub(crate) traceparent: Option<String>,
    /// When and where it is tried again; `None`: it is dead.
    pub(crate) again: Option<Again>,
}

/// What is no longer in the list of messages.
#[derive(Debug)]
pub(crate) struct Left<'a> {
    /// Leaves unhandled.
    pub(crate) fallen: &'a mut Vec<Fallen>,
    /// Offsets of what was handled, by this round.
    pub(crate) done: &'a mut Vec<i64>,
}

/// How far a round came. Messages that are finished are no longer in the list; fallen ones are in the other.
#[derive(Debug)]
pub(crate) enum Round {
    /// No message is left.
    Clear,
    /// The first message left failed transiently.
    Blocked(Failed),
    /// The database or the connection failed: nobody's attempt.
    Fault(anyhow::Error),
}

impl Runner {
    /// Handles messages from the front of the list until all are finished or the first one left cannot be now.
    pub(crate) async fn round<W: Work>(
        &self,
        line: &Line,
        work: &W,
        messages: &mut Vec<Message<W::Event>>,
        left: &mut Left<'_>,
        care: &mut Care,
    ) -> Round {
        self.drop_copies(messages);
        let mut mode = if care.careful > 0 { Mode::Savepoints } else { Mode::Fast };
        care.careful = care.careful.saturating_sub(1);
        // What is being retried is tried alone: the rest would be handled only to be rolled back.
        let mut most = if std::mem::take(&mut care.held) { 1 } else { usize::MAX };
        let mut stopped: Option<Failed> = None;
        while !messages.is_empty() {
            match self.step(line, work, messages, left, (mode, most), care).await {
                Ok(None) => match stopped.take() {
                    Some(failed) => return self.blocked(line, messages, failed, care),
                    None => most = usize::MAX,
                },
                Ok(Some(failed)) => return self.blocked(line, messages, failed, care),
                Err(Trouble::Stopped { before: 0, failed }) => {
                    return self.blocked(line, messages, failed, care);
                }
                Err(Trouble::Stopped { before, failed }) => {
                    most = before;
                    stopped = Some(failed);
                }
                Err(Trouble::Runtime(error)) => return Round::Fault(error),
                Err(Trouble::Failed) => {
                    (mode, care.careful) = (Mode::Savepoints, W::CAREFUL);
                    (most, stopped) = (usize::MAX, None);
                }
                Err(Trouble::Nameless(reason)) => {
                    tracing::warn!(
                        group = self.group,
                        reason,
                        "batch is run again, one message a transaction"
                    );
                    (mode, care.careful) = (Mode::Single, W::CAREFUL);
                    (most, stopped) = (usize::MAX, None);
                }
            }
        }
        Round::Clear
    }

    /// The first message left has failed for now. Where it goes nowhere else, this was an attempt.
    fn blocked<E>(&self, line: &Line, messages: &mut [Message<E>], failed: Failed, care: &mut Care) -> Round {
        care.held = true;
        if let Some(first) = messages.first_mut().filter(|_| line.order == Order::Partition) {
            first.attempt += 1;
            self.metrics.count(metrics::RETRIED, first.topic(), &self.group, 1);
        }
        Round::Blocked(failed)
    }

    /// One id twice in a batch: the first copy speaks for both, whatever becomes of it.
    fn drop_copies<E>(&self, messages: &mut Vec<Message<E>>) {
        let (before, mut seen) = (messages.len(), HashSet::with_capacity(messages.len()));
        messages.retain(|message| seen.insert(message.id));
        if let Some(first) = messages.first() {
            self.metrics.count(metrics::DUPLICATE, first.topic(), &self.group, before - messages.len());
        }
    }

    /// One transaction over at most `most` of the first messages. Returns the failure that the first message left in
    /// the list waits for.
    async fn step<W: Work>(
        &self,
        line: &Line,
        work: &W,
        messages: &mut Vec<Message<W::Event>>,
        left: &mut Left<'_>,
        (mode, most): (Mode, usize),
        care: &mut Care,
    ) -> Result<Option<Failed>, Trouble> {
        let rest = messages.split_off(mode.limit().min(most).min(messages.len()));
        let chunk = self.transact(line, work, messages, left.fallen, mode).await;
        let Ok(Chunk { fates, blocked, undone }) = chunk else {
            messages.extend(rest);
            return chunk.map(|chunk| chunk.blocked);
        };
        if undone {
            care.careful = W::CAREFUL;
        }
        let behind = messages.split_off(fates.len());
        let mut done = Vec::with_capacity(fates.len());
        for (message, fate) in std::mem::take(messages).into_iter().zip(fates) {
            match fate {
                Fate::Done => done.push(message),
                Fate::Leaves(verdict) => left.fallen.push(Fallen::of(&message, verdict)),
                Fate::Parks(_) | Fate::Parked => {}
            }
        }
        left.done.extend(done.iter().map(Message::offset));
        self.finish(work, done);
        messages.extend(behind);
        messages.extend(rest);
        Ok(blocked)
    }

    /// After the commit.
    fn finish<W: Work>(&self, work: &W, done: Vec<Message<W::Event>>) {
        let Some(first) = done.first() else { return };
        self.metrics.count(metrics::DONE, first.topic(), &self.group, done.len());
        work::committed(work, &done, &self.group);
    }

    pub(crate) fn around(&self) -> Around<'_> {
        Around { group: &self.group, metrics: &self.metrics }
    }
}

impl Fallen {
    pub(crate) fn of<E>(message: &Message<E>, Verdict { class, failed, again }: Verdict) -> Self {
        Self {
            record: Arc::clone(message.record()),
            id: message.id,
            attempt: message.attempt,
            code: if class == PANIC { class.to_owned() } else { failed.failure.code() },
            class,
            text: failed.failure.text(),
            failed_at: failed.at,
            traceparent: failed.traceparent,
            again,
        }
    }

    /// It has ended the process each time that it was begun.
    pub(crate) fn crashed<E>(message: &Message<E>) -> Self {
        Self {
            record: Arc::clone(message.record()),
            id: message.id,
            attempt: message.attempt,
            code: CRASH.to_owned(),
            class: CRASH,
            text: format!("the process ended {CRASHES} times while it was being handled"),
            failed_at: Utc::now(),
            traceparent: None,
            again: None,
        }
    }

    /// Too old for its inbox row to be kept: it cannot be told any more whether it was handled.
    fn stale<E>(message: &Message<E>, horizon: Duration) -> Self {
        let days = horizon.as_secs() / 86_400;
        Self {
            record: Arc::clone(message.record()),
            id: message.id,
            attempt: message.attempt,
            code: STALE.to_owned(),
            class: STALE,
            text: format!("older than the inbox remembers ({days} days, less one)"),
            failed_at: Utc::now(),
            traceparent: None,
            again: None,
        }
    }
}
