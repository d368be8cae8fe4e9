//! Leave to run a transaction: the breaker's, the crash count's, and a slot; and what is told afterwards.

use tokio::sync::SemaphorePermit;
use waybill_event::{Event, MessageId};

use super::{Assignment, Engine, Place, Stopped, pending::Pending};
use crate::{
    batch::{DECODE, Fallen, PANIC, PERMANENT},
    breaker::{BreakerPhase, Pass},
    crash::{Entry, Mode, Verdict},
    metrics,
};

/// Held during a transaction and until its outcomes are told.
pub(super) struct Turn<'e> {
    pub(super) pass: Pass,
    mode: Mode,
    _entry: Entry,
    _slot: SemaphorePermit<'e>,
}

impl Turn<'_> {
    /// Exactly one message may be handled: it probes a line that is open, or it may end the process.
    pub(super) fn is_single(&self) -> bool {
        self.pass.is_probe() || self.mode == Mode::Suspect
    }
}

impl Engine {
    /// Waits for all of it. Taken before `begin`: a revoked partition must not start another transaction.
    pub(super) async fn turn(&self, mode: Mode, place: &Place) -> Result<Turn<'_>, Stopped> {
        let breaker = &place.line.breaker;
        let state = breaker.state();
        let reason = match state.phase {
            BreakerPhase::Closed => None,
            BreakerPhase::Open => Some(metrics::BREAKER),
            BreakerPhase::Stopped => Some(metrics::STOPPED),
        };
        if let Some(reason) = reason {
            place.state.batch.block(reason, state.reason.unwrap_or_default());
        }
        let leave = async {
            let pass = breaker.admit().await;
            // The gate before the slot: the one who is alone needs a slot too.
            let entry = self.gate.enter(mode).await;
            Some(Turn { pass, mode, _entry: entry, _slot: self.slots.acquire().await.ok()? })
        };
        match place.stop.run_until_cancelled(leave).await.flatten() {
            Some(turn) if !place.stop.is_cancelled() => {
                if reason.is_some() && !turn.pass.is_probe() {
                    place.state.batch.unblock();
                }
                Ok(turn)
            }
            _ => Err(Stopped),
        }
    }

    /// Before a batch: whether its messages may end the process.
    pub(super) async fn mode(&self, first: i64, end: i64, assignment: &Assignment) -> Result<Mode, Stopped> {
        let (place, pool) = (&assignment.place, &self.runner.pool);
        self.insist(place, metrics::DATABASE, || place.crash.begin(pool, first, end)).await?;
        let committed = (place.committed)();
        self.insist(place, metrics::DATABASE, || place.crash.progressed(pool, committed)).await
    }

    /// Whether a message of a suspect partition is begun at all.
    pub(super) async fn begins(
        &self,
        id: MessageId,
        replay: Option<uuid::Uuid>,
        place: &Place,
    ) -> Result<Verdict, Stopped> {
        let pool = &self.runner.pool;
        self.insist(place, metrics::DATABASE, || place.crash.before(pool, id.as_uuid(), replay)).await
    }

    /// A message of a suspect partition has ended, in whatever way.
    pub(super) async fn ended(&self, id: MessageId, place: &Place) -> Result<(), Stopped> {
        let pool = &self.runner.pool;
        self.insist(place, metrics::DATABASE, || place.crash.after(pool, id.as_uuid())).await
    }

    /// Tells the breaker what is finished, in the order of the offsets, and returns what may leave. What is held goes
    /// back to where it was, and is handled again when the line runs.
    pub(super) fn tell<E: Event>(&self, pending: &mut Pending<E>, place: &Place) -> Vec<Fallen> {
        let fallen = pending.take_fallen();
        let done = std::mem::take(&mut pending.done).into_iter().map(|offset| (offset, None));
        let for_good = |fallen: &&Fallen| matches!(fallen.class, PERMANENT | PANIC | DECODE);
        let dead = fallen.iter().filter(for_good);
        let dead = dead.map(|fallen| (fallen.record.offset, Some(fallen.id.as_uuid())));
        let outcomes: Vec<_> = done.chain(dead).collect();
        let held = if outcomes.is_empty() { None } else { place.line.breaker.finished(outcomes) };
        let Some(held) = held else { return fallen };
        let (back, leaving) =
            fallen.into_iter().partition(|fallen| for_good(&fallen) && fallen.record.offset >= held);
        pending.put_back(back);
        leaving
    }
}
