//! Running a handler without Kafka, with the very transaction code of the runtime.

use std::sync::Arc;

use sqlx::PgPool;
use waybill_event::MessageId;

use crate::{
    BatchHandler, Handler, Message,
    batch::{Care, Left, Round, Runner},
    line::Line,
    metrics::Metrics,
    settings::Settings,
    work::{Each, Whole, Work},
};

/// Delivers messages to handlers of one group: inbox, savepoints, retries of a whole batch and commit as in the
/// runtime; a failing message is reported instead of retried or dead-lettered.
#[derive(Debug)]
pub struct Harness {
    runner: Runner,
    line: Line,
    care: tokio::sync::Mutex<Care>,
}

/// What became of the messages of one delivery.
#[derive(Debug, Default)]
pub struct Delivered {
    /// Finished: their effect is committed, by this delivery or an earlier one.
    pub done: Vec<MessageId>,
    /// Failed for good, with the error: the runtime would dead-letter them.
    pub dead: Vec<(MessageId, String)>,
    /// Failed for now, with the error: the runtime would try again before it touches `waiting`.
    pub blocked: Option<(MessageId, String)>,
    /// Behind the blocked one, not handled.
    pub waiting: Vec<MessageId>,
}

impl Harness {
    /// The database needs the tables of [`migrator`](crate::migrator).
    #[must_use]
    pub fn new(pool: PgPool, group: impl Into<String>) -> Self {
        let (group, settings) = (group.into(), Arc::new(Settings::new(Vec::new(), "")));
        let line = Line::in_place(&group);
        let runner = Runner { pool, group, settings, metrics: Metrics::new() };
        Self { runner, line, care: tokio::sync::Mutex::default() }
    }

    /// Delivers a batch to a handler of single messages.
    ///
    /// # Errors
    /// The database failed.
    pub async fn deliver<H: Handler>(
        &self,
        handler: &H,
        messages: Vec<Message<H::Event>>,
    ) -> anyhow::Result<Delivered> {
        self.run(&Each(handler), messages).await
    }

    /// Delivers a batch to a handler of batches.
    ///
    /// # Errors
    /// The database failed.
    pub async fn deliver_batch<H: BatchHandler>(
        &self,
        handler: &H,
        messages: Vec<Message<H::Event>>,
    ) -> anyhow::Result<Delivered> {
        self.run(&Whole(handler), messages).await
    }

    async fn run<W: Work>(
        &self,
        work: &W,
        mut messages: Vec<Message<W::Event>>,
    ) -> anyhow::Result<Delivered> {
        let all: Vec<_> = messages.iter().map(|message| message.id).collect();
        let (mut dead, mut done, mut care) = (Vec::new(), Vec::new(), self.care.lock().await);
        let mut gone = Left { fallen: &mut dead, done: &mut done };
        let round = self.runner.round(&self.line, work, &mut messages, &mut gone, &mut care).await;
        let mut left = messages.iter().map(|message| message.id);
        let blocked = match round {
            Round::Clear => None,
            Round::Blocked(failed) => left.next().map(|id| (id, failed.failure.text())),
            Round::Fault(error) => return Err(error),
        };
        let waiting: Vec<_> = left.collect();
        let dead: Vec<_> = dead.into_iter().map(|dead| (dead.id, dead.text)).collect();
        let unfinished = |id: &MessageId| {
            waiting.contains(id)
                || dead.iter().any(|(dead, _)| dead == id)
                || blocked.as_ref().is_some_and(|(blocked, _)| blocked == id)
        };
        let done = all.into_iter().filter(|id| !unfinished(id)).collect();
        Ok(Delivered { done, dead, blocked, waiting })
    }
}
