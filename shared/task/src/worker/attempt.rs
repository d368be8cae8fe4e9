//! One attempt at a task, from the claim to what is written about it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span};
use waybill_event::TraceContext;

use super::Shared;
use super::heartbeat::beat;
use crate::store::{Claimed, Held};
use crate::{Guard, Running, Status, Stop, backoff, metrics, span};

/// Pause between tries to write the end of an attempt: first and largest.
const WRITE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

pub(super) struct Attempt {
    shared: Arc<Shared>,
    task: Running,
    held: Held,
    began: Instant,
}

/// What is to be written.
#[derive(Debug)]
enum End {
    /// The handler has written it.
    Ended,
    Finish(Status, Option<String>),
    Postpone(Duration, String),
    Release,
    Lost,
}

impl Attempt {
    pub(super) fn new(shared: &Arc<Shared>, claimed: Claimed, began: Instant) -> Self {
        let trace = claimed.traceparent.as_deref();
        let trace = trace.and_then(|parent| TraceContext::parse(parent, claimed.tracestate.as_deref()));
        // A running task has a token: a constraint.
        let token = claimed.token.unwrap_or_default();
        let task = Running {
            id: claimed.id.into(),
            kind: claimed.kind,
            key: claimed.key,
            payload: claimed.payload,
            attempt: u32::try_from(claimed.attempts).unwrap_or_default(),
            token,
            trace,
        };
        Self { shared: shared.clone(), task, held: Held { id: claimed.id, token }, began }
    }

    /// Runs the handler and writes the end. Returns the key whose next task may now run.
    pub(super) async fn run(self, stop: CancellationToken) -> Option<String> {
        let shared = &*self.shared;
        let lost = CancellationToken::new();
        let beating =
            beat(shared.store.clone(), self.held, shared.settings.clone(), self.began, lost.clone());
        // In a task of its own: a handler that blocks its thread keeps its lease.
        let _beating = AbortOnDropHandle::new(tokio::spawn(beating));
        let span = span::attempt(&self.task);
        let end = self.handle(&span, &lost, &stop).await;
        fail::fail_point!("task.before_complete");
        let outcome = self.write(end, &lost).instrument(span).await;
        shared.metrics.ended(&self.task.kind, outcome, self.began.elapsed().as_secs_f64());
        let over = [metrics::DONE, metrics::FAILED, metrics::CANCELLED].contains(&outcome);
        self.task.key.filter(|_| over)
    }

    async fn handle(&self, span: &Span, lost: &CancellationToken, stop: &CancellationToken) -> End {
        let Some(handler) = self.shared.handlers.get(&self.task.kind) else { return End::Release };
        let guard = Guard::new(self.held, self.shared.pool.clone(), self.shared.store.clone());
        let handling = AssertUnwindSafe(handler.run(&self.task, &guard)).catch_unwind();
        let result = tokio::select! {
            biased;
            () = lost.cancelled() => Err(Stop::Lost),
            result = handling.instrument(span.clone()) => result.unwrap_or_else(|panic| {
                span::failed(span, "panic");
                Err(Stop::retry(anyhow::anyhow!("the handler panicked: {}", text(&*panic))))
            }),
            () = stop.cancelled() => return End::Release,
        };
        // Whatever the handler returned afterwards: its transaction ended the task.
        if guard.has_ended() { End::Ended } else { self.judge(span, result) }
    }

    fn judge(&self, span: &Span, result: Result<(), Stop>) -> End {
        match result {
            Ok(()) => End::Finish(Status::Done, None),
            Err(Stop::Cancelled) => End::Finish(Status::Cancelled, None),
            Err(Stop::Lost) => End::Lost,
            Err(Stop::Fail(error)) => {
                span::failed(span, "fail");
                End::Finish(Status::Failed, Some(format!("{error:#}")))
            }
            Err(Stop::Retry { error, after }) => {
                span::failed(span, "retry");
                if self.shared.limits.get(&self.task.kind).is_some_and(|most| self.task.attempt >= *most) {
                    return End::Finish(Status::Failed, Some(format!("{error:#}")));
                }
                let delay = || backoff::delay(&self.shared.settings, self.task.attempt);
                End::Postpone(after.unwrap_or_else(delay), format!("{error:#}"))
            }
        }
    }

    /// Writes the end, and tries on until the lease is lost: a handler that was successful should not run again
    /// because the database was away for a moment.
    async fn write(&self, end: End, lost: &CancellationToken) -> &'static str {
        let outcome = match &end {
            End::Ended | End::Finish(Status::Done, _) => metrics::DONE,
            End::Finish(Status::Cancelled, _) => metrics::CANCELLED,
            End::Finish(..) => metrics::FAILED,
            End::Postpone(..) => metrics::RETRIED,
            End::Release => metrics::RELEASED,
            End::Lost => metrics::LOST,
        };
        let mut pause = WRITE.0;
        loop {
            match self.try_write(&end).await {
                Ok(true) => break,
                Ok(false) => return self.discard(),
                Err(error) if lost.is_cancelled() => {
                    tracing::warn!(%error, task.id = %self.task.id, "the end of a task attempt was not written");
                    return self.discard();
                }
                // Also a write whose answer was lost ends here: the next one meets another token.
                Err(_) => tokio::time::sleep(backoff::about(pause)).await,
            }
            pause = (pause * 2).min(WRITE.1);
        }
        self.log(&end);
        outcome
    }

    async fn try_write(&self, end: &End) -> Result<bool, sqlx::Error> {
        let store = &self.shared.store;
        match end {
            End::Finish(status, error) => store.finish(self.held, *status, error.as_deref()).await,
            End::Postpone(delay, error) => store.postpone(self.held, *delay, error).await,
            End::Release => store.release(self.held).await,
            End::Ended | End::Lost => Ok(true),
        }
    }

    fn discard(&self) -> &'static str {
        self.log(&End::Lost);
        metrics::LOST
    }

    fn log(&self, end: &End) {
        let (id, kind, attempt) = (self.task.id, &self.task.kind, self.task.attempt);
        match end {
            End::Finish(Status::Failed, error) => {
                tracing::error!(task.id = %id, task.kind = kind, attempt, error, "task failed");
            }
            End::Postpone(delay, error) => {
                tracing::warn!(task.id = %id, task.kind = kind, attempt, error, ?delay, "task will be tried again");
            }
            End::Lost => {
                tracing::warn!(task.id = %id, task.kind = kind, attempt, "task attempt lost its task; discarded");
            }
            _ => tracing::debug!(task.id = %id, task.kind = kind, attempt, ?end, "task attempt ended"),
        }
    }
}

fn text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text")
}
