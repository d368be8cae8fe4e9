//! One face for both kinds of handlers: each call runs in its span, is timed, and cannot unwind further.

use std::{any::Any, panic::AssertUnwindSafe, time::Instant};

use chrono::{DateTime, Utc};
use futures::FutureExt;
use sqlx::PgConnection;
use tracing::{Instrument, Span};
use waybill_event::{Event, TraceContext};

use crate::{BatchHandler, Failure, Handler, Message, Outcome, Tx, metrics::Metrics, span};

/// What surrounds a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Around<'a> {
    pub(crate) group: &'a str,
    pub(crate) metrics: &'a Metrics,
}

/// How a call ended that did not succeed.
#[derive(Debug)]
pub(crate) enum Stumble {
    Failed(Failed),
    /// The handler panicked; the text of the panic.
    Panicked(Failed),
}

/// A failure and the span it happened in.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) failure: Failure,
    pub(crate) at: DateTime<Utc>,
    pub(crate) traceparent: Option<String>,
    /// The handler had not used its transaction: nothing is to be undone.
    pub(crate) clean: bool,
}

/// One per message of a call that succeeded, in their order: `None` is done.
pub(crate) type Verdicts = Vec<Option<Failed>>;

impl Failed {
    pub(crate) fn new(failure: Failure) -> Self {
        let traceparent = TraceContext::current().map(|context| context.traceparent);
        Self { failure, at: Utc::now(), traceparent, clean: false }
    }
}

pub(crate) trait Work: Send + Sync {
    type Event: Event;

    /// After a batch of which something had to be undone, as many begin with savepoints.
    const CAREFUL: u32;

    /// All messages in one call, for work that has one. A message with a verdict has left nothing in the transaction.
    fn all(
        &self,
        tx: &mut PgConnection,
        messages: &[Message<Self::Event>],
        around: Around<'_>,
    ) -> impl Future<Output = Option<Result<Verdicts, Stumble>>> + Send {
        let _ = (tx, messages, around);
        std::future::ready(None)
    }

    fn one(
        &self,
        tx: &mut PgConnection,
        message: &Message<Self::Event>,
        around: Around<'_>,
    ) -> impl Future<Output = Result<(), Stumble>> + Send;

    fn committed(&self, messages: &[Message<Self::Event>]);
}

/// Calls the hook after a commit. A panic of it is logged and goes no further: the messages are committed.
pub(crate) fn committed<W: Work>(work: &W, messages: &[Message<W::Event>], group: &str) {
    if std::panic::catch_unwind(AssertUnwindSafe(|| work.committed(messages))).is_err() {
        tracing::error!(group, "the hook after the commit panicked; the messages are committed");
    }
}

/// A [`Handler`].
#[derive(Debug)]
pub(crate) struct Each<'h, H>(pub(crate) &'h H);

/// A [`BatchHandler`].
#[derive(Debug)]
pub(crate) struct Whole<'h, H>(pub(crate) &'h H);

impl<H: Handler> Work for Each<'_, H> {
    type Event = H::Event;
    /// Failures come in runs, and a batch run twice costs more than its savepoints.
    const CAREFUL: u32 = 20;

    async fn one(
        &self,
        tx: &mut PgConnection,
        message: &Message<H::Event>,
        around: Around<'_>,
    ) -> Result<(), Stumble> {
        let (span, mut tx) = (span::process(message, around.group), Tx::new(tx));
        let mut ended = call(self.0.handle(&mut tx, message), span, message.topic(), around).await;
        if let Err(Stumble::Failed(failed)) = &mut ended {
            failed.clean = !tx.is_used() && !failed.failure.broke_transaction();
        }
        ended
    }

    fn committed(&self, messages: &[Message<H::Event>]) {
        self.0.committed(messages);
    }
}

impl<H: BatchHandler> Work for Whole<'_, H> {
    type Event = H::Event;
    /// A call for each message costs more than a batch that is run twice, and its outcomes undo nothing.
    const CAREFUL: u32 = 0;

    async fn all(
        &self,
        tx: &mut PgConnection,
        messages: &[Message<H::Event>],
        around: Around<'_>,
    ) -> Option<Result<Verdicts, Stumble>> {
        let Some(first) = messages.first() else { return Some(Ok(Vec::new())) };
        // One span per message in its own trace, and one for a call of several that links to them.
        let each: Vec<Span> = messages.iter().map(|message| span::process(message, around.group)).collect();
        let span = match &each[..] {
            [only] => only.clone(),
            _ => span::process_batch(first.topic(), around.group, &each),
        };
        let outcomes = match call(self.judge(tx, messages), span, first.topic(), around).await {
            Ok(outcomes) => outcomes,
            Err(stumble) => return Some(Err(stumble)),
        };
        let verdict = |(outcome, span): (Outcome, &Span)| {
            let failure = outcome.into_failure()?;
            span::failed(span, &failure);
            Some(span.in_scope(|| Failed::new(failure)))
        };
        Some(Ok(outcomes.into_iter().zip(&each).map(verdict).collect()))
    }

    async fn one(
        &self,
        tx: &mut PgConnection,
        message: &Message<H::Event>,
        around: Around<'_>,
    ) -> Result<(), Stumble> {
        let span = span::process(message, around.group);
        let alone = async {
            let outcomes = self.judge(tx, std::slice::from_ref(message)).await?;
            outcomes.into_iter().find_map(Outcome::into_failure).map_or(Ok(()), Err)
        };
        call(alone, span, message.topic(), around).await
    }

    fn committed(&self, messages: &[Message<H::Event>]) {
        self.0.committed(messages);
    }
}

impl<H: BatchHandler> Whole<'_, H> {
    async fn judge(
        &self,
        tx: &mut PgConnection,
        messages: &[Message<H::Event>],
    ) -> Result<Vec<Outcome>, Failure> {
        let outcomes = self.0.handle(tx, messages).await?;
        if outcomes.len() != messages.len() {
            let (given, wanted) = (outcomes.len(), messages.len());
            // Which message has no verdict cannot be told; a fault of the handler, and visible as a stop.
            return Err(Failure::Transient(anyhow::anyhow!("{given} outcomes for {wanted} messages")));
        }
        Ok(outcomes)
    }
}

async fn call<T>(
    handling: impl Future<Output = Result<T, Failure>> + Send,
    span: Span,
    topic: &str,
    around: Around<'_>,
) -> Result<T, Stumble> {
    let started = Instant::now();
    let inside = async {
        match AssertUnwindSafe(handling).catch_unwind().await {
            Ok(result) => result.map_err(|failure| Stumble::Failed(Failed::new(failure))),
            Err(panic) => {
                let failure =
                    Failure::Permanent(anyhow::anyhow!("handler panicked: {}", panic_text(&*panic)));
                Err(Stumble::Panicked(Failed::new(failure)))
            }
        }
    };
    let result = inside.instrument(span.clone()).await;
    around.metrics.handled(started.elapsed().as_secs_f64(), topic, around.group);
    if let Err(Stumble::Failed(failed) | Stumble::Panicked(failed)) = &result {
        span::failed(&span, &failed.failure);
    }
    result
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}
