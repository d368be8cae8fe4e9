//! The park of a subscription in the runtime: its drainer, its replays, and its bounds.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use chrono::Utc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_event::{Event, MessageId, ReplayOutcome};

use super::{Assignment, Engine, RETRY_MAX, Stopped, replay::replay_id};
use crate::{
    Failure, Message,
    backoff::Backoff,
    batch::Fallen,
    breaker::{Pass, Ruling},
    crash::{CrashCount, Entry, Mode, Verdict},
    line::Line,
    metrics,
    park::{self, Begun, Drainer, Outlet, Outside, ParkSettings, Told},
    policy::ReplaySafety,
    record::Record,
    work::Work,
};

/// How often what is parked is counted for the metrics, and the share of the time that it may take: one in so many.
const COUNT_EVERY: Duration = Duration::from_secs(5);
const COUNT_SHARE: u32 = 20;
/// In place of a partition, for the crash count of heads.
const NO_PARTITION: i32 = -1;

impl Engine {
    /// Drains the park of a subscription until it is stopped.
    pub(crate) async fn drain<W: Work>(
        self: &Arc<Self>,
        work: W,
        line: &Arc<Line>,
        park: ParkSettings,
        stop: &CancellationToken,
    ) {
        let runner = &self.runner;
        let begun = Arc::default();
        let outside = Aside { engine: Arc::clone(self), line: Arc::clone(line), begun: Arc::clone(&begun) };
        let drainer = Drainer {
            pool: runner.pool.clone(),
            group: runner.group.clone(),
            topic: Arc::clone(&line.source),
            settings: Arc::clone(&runner.settings),
            park,
            metrics: runner.metrics.clone(),
            work,
            outside,
            wake: Arc::clone(&line.wake),
            dead_letters: Outlet::default(),
            outcomes: Outlet::default(),
        };
        let too_late = async {
            stop.cancelled().await;
            tokio::time::sleep(runner.settings.drain_timeout).await;
        };
        let counting = stop.run_until_cancelled(self.count_parked(line));
        let draining = async {
            tokio::select! {
                () = drainer.run(stop) => {}
                () = too_late => {
                    tracing::warn!(group = runner.group, "a parked message did not end in time and is rolled back");
                }
            }
        };
        tokio::join!(draining, counting);
        // The process lives: a head that did not end in time was no crash.
        let begun = std::mem::take(&mut *lock(&begun));
        for crash in begun.into_values() {
            if let Err(error) = crash.clean_end(&runner.pool).await {
                tracing::debug!(group = runner.group, %error, "the crash count keeps a head of the park");
            }
        }
    }

    async fn count_parked(&self, line: &Line) {
        loop {
            let started = Instant::now();
            match park::gauge(&self.runner.pool, &self.runner.group, &line.source).await {
                Ok(gauge) => *lock(&line.parked) = Some(gauge),
                Err(error) => tracing::debug!(group = self.runner.group, %error, "counting what is parked"),
            }
            tokio::time::sleep(COUNT_EVERY.max(started.elapsed() * COUNT_SHARE)).await;
        }
    }

    /// Waits while too much is parked: what fails now could not be parked.
    pub(super) async fn room(&self, assignment: &Assignment) -> Result<(), Stopped> {
        let place = &assignment.place;
        let Some(park) = &place.line.park else { return Ok(()) };
        let (runner, line) = (&self.runner, &place.line);
        let mut backoff = Backoff::new(runner.settings.retry_min, RETRY_MAX);
        let mut blocked = false;
        loop {
            let left = || line.room.is_left(&runner.pool, &runner.group, &line.source, park);
            if self.insist(place, metrics::DATABASE, left).await? {
                if blocked {
                    place.state.batch.unblock();
                }
                return Ok(());
            }
            let error = format!("{} keys or {} messages are parked", park.max_keys, park.max_rows);
            place.state.batch.block(metrics::PARK_FULL, error);
            blocked = true;
            if !backoff.wait(&place.stop).await {
                return Err(Stopped);
            }
        }
    }

    /// Replays of a group that keeps the order of each key go to the front of the park, and are never run here.
    pub(super) async fn park_replays<E: Event>(
        &self,
        records: Vec<Record>,
        assignment: &mut Assignment,
    ) -> Result<(), Stopped> {
        let next = records.last().map_or(0, |record| record.offset + 1);
        let (mut replays, mut fallen) = (Vec::with_capacity(records.len()), Vec::new());
        for record in records {
            let record = Arc::new(record);
            match self.decode::<E>(&record, assignment).await? {
                Ok(message) if assignment.place.line.replay_safety == ReplaySafety::Never => {
                    fallen.push(Fallen::refused(&message));
                }
                Ok(message) => replays.push((message, replay_id(&record))),
                Err(undecodable) => fallen.push(undecodable),
            }
        }
        let place = &assignment.place;
        self.bury(fallen, place).await?;
        let replays: Vec<(&Message<E>, Uuid)> =
            replays.iter().map(|(message, replay)| (message, *replay)).collect();
        let (runner, line) = (&self.runner, &place.line);
        let park =
            || park::park_replay(&runner.pool, &runner.settings, &runner.group, &line.source, &replays);
        self.insist(place, metrics::DATABASE, park).await?;
        line.wake.notify_one();
        (place.advance)(next);
        Ok(())
    }
}

/// Heads that are begun and not ended, each with a count of its own: several are handled side by side.
type Heads = HashMap<Uuid, CrashCount>;

/// What the drainer asks of the rest of the runtime.
struct Aside {
    engine: Arc<Engine>,
    line: Arc<Line>,
    begun: Arc<Mutex<Heads>>,
}

/// The breaker's leave, and the gate's.
struct Leave {
    pass: Pass,
    entry: Mutex<Option<Entry>>,
}

impl Leave {
    fn exchange(&self, entry: Option<Entry>) -> Option<Entry> {
        std::mem::replace(&mut *lock(&self.entry), entry)
    }

    fn is_alone(&self) -> bool {
        matches!(*lock(&self.entry), Some(Entry::Alone(_)))
    }
}

/// Plain values, whole after every statement: a panic elsewhere does not spoil them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outside for Aside {
    type Pass = Leave;

    async fn bury(&self, dead: &Fallen) -> anyhow::Result<()> {
        let topic = &*self.line.dead_letter_topic;
        self.engine.publisher.redirect(topic, &self.engine.runner.group, dead).await?;
        super::bury::log_dead(dead, topic);
        Ok(())
    }

    async fn report(&self, told: &Told) -> anyhow::Result<()> {
        let outcome = ReplayOutcome {
            message_id: told.message_id.as_uuid(),
            replay_id: told.replay_id,
            consumer_group: self.engine.runner.group.clone(),
            topic: self.line.source.to_string(),
            outcome: told.outcome.clone(),
            occurred_at: Utc::now(),
        };
        Ok(self.engine.publisher.report(&self.engine.outcomes, &outcome, told.trace.as_ref()).await?)
    }

    async fn admit(&self) -> Leave {
        let pass = self.line.breaker.admit().await;
        let entry = self.engine.gate.enter(Mode::Normal).await;
        Leave { pass, entry: Mutex::new(Some(entry)) }
    }

    async fn begin(&self, leave: &Leave, id: MessageId, replay: Option<Uuid>) -> anyhow::Result<Begun> {
        let (runner, id) = (&self.engine.runner, id.as_uuid());
        leave.pass.tries(id);
        // One whose end could not be stored has not ended the process: begun again by the same count, it counts once.
        let crash = lock(&self.begun).get(&id).cloned().unwrap_or_else(|| {
            let place = format!("{} (park)", self.line.source);
            CrashCount::new(runner.group.as_str(), place, NO_PARTITION)
        });
        if !leave.is_alone() && crash.suspects(&runner.pool, id).await? == Mode::Suspect {
            return Ok(Begun::Alone);
        }
        // Before the statement: cancelled in it, it may be stored, and the clean end must take it back.
        lock(&self.begun).insert(id, crash.clone());
        Ok(match crash.before(&runner.pool, id, replay).await? {
            Verdict::Handle => Begun::Handle,
            Verdict::Crash => Begun::Crash,
        })
    }

    async fn alone(&self, leave: &Leave) {
        // Given back before it is asked for again: the one who is alone waits for all others.
        drop(leave.exchange(None));
        let alone = self.engine.gate.enter(Mode::Suspect).await;
        leave.exchange(Some(alone));
    }

    async fn end(&self, id: MessageId) -> anyhow::Result<()> {
        let id = id.as_uuid();
        let crash = lock(&self.begun).get(&id).cloned();
        if let Some(crash) = crash {
            crash.after(&self.engine.runner.pool, id).await?;
            lock(&self.begun).remove(&id);
        }
        Ok(())
    }

    fn tried(&self, id: MessageId, replay: bool, failure: Option<&Failure>) -> bool {
        let (breaker, id) = (&self.line.breaker, id.as_uuid());
        let ruling = match failure {
            None => {
                breaker.succeeded(1);
                Ruling::Count
            }
            Some(Failure::Transient(_)) => breaker.failed_transiently(id, false),
            // Replays of one cause that is not repaired would stop the source.
            Some(Failure::Permanent(_)) if replay => Ruling::Count,
            Some(Failure::Permanent(_)) => breaker.failed_permanently(id),
        };
        ruling == Ruling::Count
    }
}
