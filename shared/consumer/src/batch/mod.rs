//! The batch transaction: inbox, handlers, commit, and what happens when a handler fails.
//!
//! Works through the messages of one partition in order and says how far it came. It knows nothing of Kafka: dead
//! letters are handed back to be published, offsets are the caller's.

mod transaction;

use std::{collections::HashSet, sync::Arc};

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use waybill_event::MessageId;

use crate::{
    Message,
    metrics::{self, Metrics},
    record::Record,
    settings::Settings,
    work::{Around, Failed, Work},
};
use transaction::{Chunk, Trouble};

/// More than 64 open subtransactions overflow the server's cache of them, and every reader pays.
const SAVEPOINTS: usize = 50;
/// After a failure as many batches start with savepoints: failures come in runs, and a batch run twice costs more
/// than its savepoints.
const CAREFUL_BATCHES: u32 = 20;

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
    /// One transaction, no savepoint.
    Fast,
    /// A savepoint per message, [`SAVEPOINTS`] a transaction.
    Savepoints,
    /// One message a transaction, so that whatever fails names its message.
    Single,
}

/// How many batches are still to begin with savepoints; kept per partition.
#[derive(Debug, Default)]
pub(crate) struct Care(u32);

/// A message or record that will never be handled.
#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) record: Arc<Record>,
    pub(crate) id: MessageId,
    pub(crate) attempt: u32,
    pub(crate) code: String,
    /// `decode`, `permanent` or `panic`.
    pub(crate) class: &'static str,
    pub(crate) text: String,
    pub(crate) failed_at: DateTime<Utc>,
    /// Of the failed attempt's span.
    pub(crate) traceparent: Option<String>,
}

/// How far a round came. Messages that are finished are no longer in the list; dead ones are in the other.
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
    /// `dead` receives those whose failure is final; their place in the list is given up.
    pub(crate) async fn round<W: Work>(
        &self,
        work: &W,
        messages: &mut Vec<Message<W::Event>>,
        dead: &mut Vec<Dead>,
        care: &mut Care,
    ) -> Round {
        self.drop_copies(messages);
        let mut mode = if care.0 > 0 { Mode::Savepoints } else { Mode::Fast };
        care.0 = care.0.saturating_sub(1);
        while !messages.is_empty() {
            let result = match mode {
                Mode::Fast => self.fast(work, messages).await.map(|()| None),
                Mode::Savepoints => self.careful(work, messages, dead, SAVEPOINTS).await,
                Mode::Single => self.careful(work, messages, dead, 1).await,
            };
            match result {
                Ok(None) => continue,
                Ok(Some(failed)) => {
                    care.0 = CAREFUL_BATCHES;
                    if let Some(first) = messages.first_mut() {
                        first.attempt += 1;
                        self.metrics.count(metrics::RETRIED, first.topic(), &self.group, 1);
                    }
                    return Round::Blocked(failed);
                }
                Err(Trouble::Runtime(error)) => return Round::Fault(error),
                Err(Trouble::Failed) => mode = Mode::Savepoints,
                Err(Trouble::Nameless(reason)) => {
                    tracing::warn!(
                        group = self.group,
                        reason,
                        "batch is run again, one message a transaction"
                    );
                    mode = Mode::Single;
                }
            }
            care.0 = CAREFUL_BATCHES;
        }
        Round::Clear
    }

    /// One id twice in a batch: the first copy speaks for both, whatever becomes of it.
    fn drop_copies<E>(&self, messages: &mut Vec<Message<E>>) {
        let (before, mut seen) = (messages.len(), HashSet::with_capacity(messages.len()));
        messages.retain(|message| seen.insert(message.id));
        if let Some(first) = messages.first() {
            self.metrics.count(metrics::DUPLICATE, first.topic(), &self.group, before - messages.len());
        }
    }

    async fn fast<W: Work>(&self, work: &W, messages: &mut Vec<Message<W::Event>>) -> Result<(), Trouble> {
        self.try_all(work, messages).await?;
        self.finish(work, std::mem::take(messages));
        Ok(())
    }

    /// One transaction over the first messages, each in a savepoint. Returns the failure that the first message left
    /// in the list must wait for.
    async fn careful<W: Work>(
        &self,
        work: &W,
        messages: &mut Vec<Message<W::Event>>,
        dead: &mut Vec<Dead>,
        limit: usize,
    ) -> Result<Option<Failed>, Trouble> {
        let rest = messages.split_off(limit.min(messages.len()));
        let chunk = self.try_each(work, messages, limit == 1).await;
        let Ok(Chunk { verdicts, blocked }) = chunk else {
            messages.extend(rest);
            return chunk.map(|chunk| chunk.blocked);
        };
        let left = messages.split_off(verdicts.len());
        let mut done = Vec::with_capacity(verdicts.len());
        for (message, verdict) in std::mem::take(messages).into_iter().zip(verdicts) {
            match verdict {
                None => done.push(message),
                Some((class, failed)) => dead.push(Dead::of(&message, class, failed)),
            }
        }
        self.finish(work, done);
        messages.extend(left);
        messages.extend(rest);
        Ok(blocked)
    }

    /// After the commit.
    fn finish<W: Work>(&self, work: &W, done: Vec<Message<W::Event>>) {
        let Some(first) = done.first() else { return };
        self.metrics.count(metrics::DONE, first.topic(), &self.group, done.len());
        let hook = std::panic::AssertUnwindSafe(|| work.committed(&done));
        if std::panic::catch_unwind(hook).is_err() {
            tracing::error!(
                group = self.group,
                "the hook after the commit panicked; the messages are committed"
            );
        }
    }

    fn around(&self) -> Around<'_> {
        Around { group: &self.group, metrics: &self.metrics }
    }
}

impl Dead {
    fn of<E>(message: &Message<E>, class: &'static str, failed: Failed) -> Self {
        Self {
            record: Arc::clone(message.record()),
            id: message.id,
            attempt: message.attempt,
            code: if class == "panic" { class.to_owned() } else { failed.failure.code() },
            class,
            text: format!("{:#}", failed.failure.error()),
            failed_at: Utc::now(),
            traceparent: failed.traceparent,
        }
    }
}
