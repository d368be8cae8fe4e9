//! What happens to the records of one partition: decode, run, bury, move the offset; again until none is left.

mod bury;
mod park;
mod patience;
mod pending;
mod replay;
mod turn;

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use waybill_event::Event;

use crate::{
    Message,
    backoff::Backoff,
    batch::{Care, Fallen, Left, Round, Runner},
    breaker::BreakerPhase,
    crash::{CrashCount, Gate, Mode, Verdict},
    line::{Kind, Line},
    metrics,
    record::Record,
    redirect::{Publisher, error_text},
    settings::Settings,
    status::{Front, PartitionState},
    work::Work,
};
use bury::{Burial, Grave};
pub(crate) use patience::Patience;
use pending::Pending;

/// Longest pause between two looks at a database or a dead-letter topic that is down.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Runs the batches of one group's partitions.
pub(crate) struct Engine {
    pub(crate) runner: Runner,
    pub(crate) publisher: Publisher,
    /// Name of the topic of outcomes.
    pub(crate) outcomes: String,
    /// Batches in a transaction at the same time. Waiting here is no failure, unlike waiting for the pool.
    pub(crate) slots: Arc<Semaphore>,
    /// Of the whole consumer: who handles a message that may end the process, handles it alone.
    pub(crate) gate: Gate,
}

/// One assigned partition.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) state: Arc<PartitionState>,
    pub(crate) line: Arc<Line>,
    pub(crate) kind: Kind,
    /// Cancelled when the partition is revoked or the consumer stops.
    pub(crate) stop: CancellationToken,
    /// Says that everything before this offset is finished.
    pub(crate) advance: Arc<dyn Fn(i64) + Send + Sync>,
    /// The next offset to be read, as far as the broker has acknowledged it in this assignment; -1: nothing yet.
    pub(crate) committed: Arc<dyn Fn() -> i64 + Send + Sync>,
    pub(crate) crash: CrashCount,
    /// Not the partition's worker, but what publishes beside it.
    pub(crate) aside: bool,
}

impl Place {
    pub(crate) fn is_replay(&self) -> bool {
        self.kind == Kind::Replay
    }

    /// Where this task shows how far it is.
    fn front(&self) -> &Front {
        if self.aside { &self.state.burial } else { &self.state.batch }
    }
}

/// The same as its worker sees it, from batch to batch.
pub(crate) struct Assignment {
    pub(crate) place: Place,
    pub(crate) care: Care,
    pub(crate) patience: Patience,
    burial: Option<Burial>,
}

impl Assignment {
    pub(crate) fn new(place: Place, patience: Patience) -> Self {
        Self { place, care: Care::default(), patience, burial: None }
    }
}

/// The partition was taken away, or the consumer stops; what was not finished will be delivered again.
#[derive(Debug)]
pub(crate) struct Stopped;

/// Why the front of the partition cannot be finished now.
struct Obstacle {
    reason: &'static str,
    error: String,
}

/// How long to wait before the front is tried again.
struct Waits {
    handler: Backoff,
    outside: Backoff,
}

impl Engine {
    /// Returns when all is handled. Dead letters at the end of the batch may still be on their way; until they have
    /// arrived no offset moves over them, and the next batch does not end.
    pub(crate) async fn process<W: Work>(
        self: &Arc<Self>,
        work: W,
        records: Vec<Record>,
        assignment: &mut Assignment,
    ) -> Result<(), Stopped> {
        let state = Arc::clone(&assignment.place.state);
        self.runner.metrics.batch(records.len(), &state.topic, &self.runner.group);
        if assignment.place.is_replay() {
            return match assignment.place.line.park {
                Some(_) => self.park_replays::<W::Event>(records, assignment).await,
                None => self.replay_all(&work, records, assignment).await,
            };
        }
        let kind = assignment.place.kind;
        let mut pending = Pending::<W::Event>::new(records, kind, &mut assignment.patience);
        let mode = self.mode(pending.reached(), pending.end(), assignment).await?;
        let mut waits = Waits::new(&self.runner.settings);
        while !pending.is_empty() {
            state.batch.set_oldest(pending.oldest());
            self.room(assignment).await?;
            let oldest = pending.oldest();
            let (round, fallen) = self.round(&work, &mut pending, mode, assignment).await?;
            if pending.is_empty() && (!fallen.is_empty() || assignment.burial.is_some()) {
                let grave = Grave { fallen, next: pending.end(), oldest };
                self.bury_aside(grave, assignment).await?;
                break;
            }
            // What earlier batches left on its way comes first.
            self.burial_ended(assignment).await?;
            self.bury(fallen, &assignment.place).await?;
            if let Some(next) = pending.advanced() {
                (assignment.place.advance)(next);
                waits.reset();
            }
            let Some(obstacle) = obstacle(round, &mut pending, assignment) else { continue };
            let wait = waits.of(obstacle.reason);
            state.batch.block(obstacle.reason, obstacle.error);
            if !wait.wait(&assignment.place.stop).await {
                return Err(Stopped);
            }
        }
        state.batch.unblock();
        state.batch.set_oldest(None);
        Ok(())
    }

    /// One turn. Returns also what leaves the partition.
    async fn round<W: Work>(
        &self,
        work: &W,
        pending: &mut Pending<W::Event>,
        mode: Mode,
        assignment: &mut Assignment,
    ) -> Result<(Round, Vec<Fallen>), Stopped> {
        let place = &assignment.place;
        let turn = self.turn(mode, place).await?;
        pending.let_go();
        let rest = match pending.messages.len() {
            2.. if turn.is_single() => pending.messages.split_off(1),
            _ => Vec::new(),
        };
        let first = pending.messages.first().map(|first| first.id);
        if let Some(first) = first {
            turn.pass.tries(first.as_uuid());
        }
        let suspect = first.filter(|_| mode == Mode::Suspect);
        if let Some(id) = suspect
            && self.begins(id, None, place).await? == Verdict::Crash
        {
            // Its crash count ends with the `dead` row.
            pending.crashed();
            pending.messages.extend(rest);
            return Ok((Round::Clear, self.tell(pending, place)));
        }
        let (line, care) = (&place.line, &mut assignment.care);
        let Pending { messages, fallen, done, .. } = pending;
        let round = self.runner.round(line, work, messages, &mut Left { fallen, done }, care).await;
        if let Some(id) = suspect {
            self.ended(id, place).await?;
        }
        if line.park.is_some() {
            line.wake.notify_one();
        }
        pending.messages.extend(rest);
        Ok((round, self.tell(pending, place)))
    }
}

impl Waits {
    fn new(settings: &Settings) -> Self {
        let (min, max) = (settings.retry_min, settings.retry_max);
        let outside = Backoff::new(min, max.min(RETRY_MAX));
        Self { handler: Backoff::new(min, max), outside }
    }

    /// The front has moved: what comes now has not failed yet.
    fn reset(&mut self) {
        self.handler.reset();
        self.outside.reset();
    }

    fn of(&mut self, reason: &str) -> &mut Backoff {
        if reason == metrics::DATABASE { &mut self.outside } else { &mut self.handler }
    }
}

/// What keeps the front from being finished; `None` when there is nothing to wait for.
fn obstacle<E: Event>(
    round: Round,
    pending: &mut Pending<E>,
    assignment: &mut Assignment,
) -> Option<Obstacle> {
    match round {
        // The breaker spaces what is tried.
        Round::Blocked(_) if assignment.place.line.breaker.state().phase != BreakerPhase::Closed => None,
        Round::Blocked(failed) => {
            let error = error_text(&failed.failure.text());
            log_blocked(pending.messages.first(), &failed.failure.code(), &error);
            Some(Obstacle { reason: metrics::TRANSIENT, error })
        }
        Round::Fault(error) => {
            let error = error_text(&format!("{error:#}"));
            tracing::warn!(partition = ?assignment.place.state, error, "database failed; the batch is run again");
            Some(Obstacle { reason: metrics::DATABASE, error })
        }
        Round::Clear => {
            let error = pending.decode(&mut assignment.patience)?;
            Some(Obstacle { reason: metrics::UNKNOWN_SCHEMA, error })
        }
    }
}

/// The one place that logs a transient failure; never with content.
fn log_blocked<E>(message: Option<&Message<E>>, code: &str, error: &str) {
    if let Some(message) = message {
        tracing::warn!(
            message_id = %message.id,
            topic = message.topic(),
            partition = message.partition(),
            offset = message.offset(),
            attempts = message.attempt,
            code,
            error,
            "message failed and is tried again"
        );
    }
}
