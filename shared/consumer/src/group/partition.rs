//! One assigned partition: its buffer, and the worker that empties it batch by batch.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use chrono::Utc;
use futures::FutureExt;
use rdkafka::{TopicPartitionList, consumer::Consumer as _};
use sqlx::PgPool;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{Client, Key, intake::Intake};
use crate::{
    codecs,
    crash::CrashCount,
    engine::{Assignment, Engine},
    lane::Lane,
    line::Kind,
    metrics,
    record::Record,
    settings::Settings,
    status::{Buffered, PartitionState},
    work::panic_text,
};

/// How long the end of a buffer is looked at for more before the batch closes.
pub(super) const LULL: Duration = Duration::from_millis(1);

/// How long the crash count's last statement is waited for.
const CLEAN_END: Duration = Duration::from_secs(2);

/// How long the request is waited for that wakes the client's thread; its answer is not needed.
const WAKE: Duration = Duration::from_millis(200);

/// What a worker tells the loop.
#[derive(Debug)]
pub(super) enum Report {
    /// The buffer of a paused partition is half empty.
    Drained(Key),
    /// A fault of the runtime itself.
    Panicked(String),
}

/// The loop's side.
pub(super) struct Partition {
    key: Key,
    state: Arc<PartitionState>,
    settings: Arc<Settings>,
    records: mpsc::UnboundedSender<Arrived>,
    kind: Kind,
    stop: CancellationToken,
    /// Ends with its partition: a worker that nobody waits for must not go on.
    worker: AbortOnDropHandle<()>,
    crash: CrashCount,
    pool: PgPool,
}

/// A record and, on a retry topic, when it may be handled. The wait is fixed when the record arrives: those behind it
/// wait at the same time.
pub(super) type Arrived = (Record, Option<Instant>);

/// Records of a retry or replay topic that are buffered per partition: such partitions are many, and mostly wait.
const ASIDE_RECORDS: usize = 1_000;
const ASIDE_BYTES: usize = 1 << 20;

/// The channel between loop and worker itself has no bound, because a record that was received must be kept; the bound
/// is the pause.
pub(super) fn over(buffer: &Buffered, settings: &Settings, kind: Kind, share: usize) -> bool {
    let (records, bytes) = match kind {
        Kind::Source => (settings.buffer_records, settings.buffer_bytes),
        Kind::Retry(_) | Kind::Replay => {
            (settings.buffer_records.min(ASIDE_RECORDS), settings.buffer_bytes.min(ASIDE_BYTES))
        }
    };
    buffer.records.load(Ordering::SeqCst) * share > records
        || buffer.bytes.load(Ordering::SeqCst) * share > bytes
}

impl Partition {
    pub(super) fn start(
        key: Key,
        engine: Arc<Engine>,
        lane: Arc<dyn Lane>,
        mut assignment: Assignment,
        report: mpsc::UnboundedSender<Report>,
    ) -> Self {
        let (records, receiver) = mpsc::unbounded_channel();
        let settings = Arc::clone(&engine.runner.settings);
        let (state, stop) = (Arc::clone(&assignment.place.state), assignment.place.stop.clone());
        let kind = assignment.place.kind;
        let (crash, pool) = (assignment.place.crash.clone(), engine.runner.pool.clone());
        let mut intake = Intake {
            key: key.clone(),
            kind,
            ahead: None,
            metrics: engine.runner.metrics.clone(),
            state: Arc::clone(&state),
            settings: Arc::clone(&settings),
            records: receiver,
            report: report.clone(),
            stop: stop.clone(),
        };
        let worker = AbortOnDropHandle::new(tokio::spawn(async move {
            let work = async {
                while let Some(batch) = intake.batch().await {
                    if lane.process(&engine, batch, &mut assignment).await.is_err() {
                        break;
                    }
                }
                // Stopped: what is on its way may still arrive, within the time that the batch would have had.
                let _ = engine.burial_ended(&mut assignment).await;
            };
            if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
                let _ = report.send(Report::Panicked(panic_text(&*panic).to_owned()));
            }
        }));
        Self { key, state, settings, records, kind, stop, worker, crash, pool }
    }

    /// Buffers a record; pauses the partition when the buffer is full.
    pub(super) fn push(&mut self, record: Record, client: &Arc<Client>) {
        self.state.buffer.records.fetch_add(1, Ordering::SeqCst);
        self.state.buffer.bytes.fetch_add(record.size(), Ordering::SeqCst);
        let due = match self.kind {
            Kind::Retry(delay) => Some(Instant::now() + record.wait(delay, Utc::now())),
            Kind::Source | Kind::Replay => None,
        };
        // A worker that is gone has been stopped, or has reported its panic.
        let _ = self.records.send((record, due));
        if over(&self.state.buffer, &self.settings, self.kind, 1) && !self.state.paused.load(Ordering::SeqCst)
        {
            if let Err(error) = client.pause(&self.list()) {
                tracing::warn!(partition = ?self.state, %error, "cannot pause");
                return;
            }
            self.state.paused.store(true, Ordering::SeqCst);
            // The worker may have emptied it before it could see the flag.
            self.resume(client);
        }
    }

    /// Fetches again once the buffer is half empty.
    pub(super) fn resume(&mut self, client: &Arc<Client>) {
        if self.state.paused.load(Ordering::SeqCst) && !over(&self.state.buffer, &self.settings, self.kind, 2)
        {
            self.resume_now(client);
            self.wake(client);
        }
    }

    /// The client's thread for this broker sleeps for up to a second when it had nothing to fetch, and a resume does
    /// not wake it. A request to the broker does.
    fn wake(&self, client: &Arc<Client>) {
        let ((topic, partition), client) = (self.key.clone(), Arc::clone(client));
        tokio::task::spawn_blocking(move || client.fetch_watermarks(&topic, partition, WAKE).map(drop));
    }

    /// Whatever the buffer holds: a pause must not outlive the assignment.
    pub(super) fn resume_paused(&self, client: &Client) {
        if self.state.paused.load(Ordering::SeqCst) {
            self.resume_now(client);
        }
    }

    /// Also where no pause is known. The client then throws its prefetch away and fetches again from where it last
    /// started: nothing is lost, but much may come twice.
    pub(super) fn resume_now(&self, client: &Client) {
        // As the client's own races do: it forgets the resume and says nothing.
        fail::fail_point!("consumer.resume_is_lost", |_| self.state.paused.store(false, Ordering::SeqCst));
        match client.resume(&self.list()) {
            Ok(()) => self.state.paused.store(false, Ordering::SeqCst),
            Err(error) => tracing::warn!(partition = ?self.state, %error, "cannot resume"),
        }
    }

    /// Nobody holds it, and yet nothing comes although there is something to read. `unreadable`: what the client said
    /// lately of records that it cannot decompress.
    pub(super) fn stalled(&self, seen: bool, unreadable: Option<&str>, client: &Client) {
        if !seen || self.state.paused.load(Ordering::SeqCst) {
            self.state.set_stalled(None);
            return;
        }
        match unreadable {
            Some(said) => {
                let error = codecs::unreadable(said);
                if self.state.set_stalled(Some((metrics::COMPRESSION, error.clone()))) {
                    tracing::error!(partition = ?self.state, error, "stands still before what it cannot read");
                }
            }
            None => {
                let error = "the client delivers nothing although there is something to read".to_owned();
                if self.state.set_stalled(Some((metrics::STALLED, error))) {
                    tracing::warn!(partition = ?self.state, "stands still without reason and is resumed");
                }
            }
        }
        self.resume_now(client);
    }

    pub(super) fn state(&self) -> &Arc<PartitionState> {
        &self.state
    }

    /// No further batch; the one under way may end.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Lets the batch under way end, at most until `deadline`; then it is rolled back.
    pub(super) async fn end(mut self, deadline: Instant) {
        self.stop.cancel();
        if timeout_at(deadline, &mut self.worker).await.is_err() {
            tracing::warn!(partition = ?self.state, "batch did not end in time and is rolled back");
            self.worker.abort();
            let _ = (&mut self.worker).await;
        }
        self.lives().await;
    }

    /// Whatever became of the batch, it was no crash. Without the database the start counts as one: harmless, unless
    /// two real ones follow at the same offset.
    async fn lives(&self) {
        if let Ok(Err(error)) = timeout(CLEAN_END, self.crash.clean_end(&self.pool)).await {
            tracing::debug!(partition = ?self.state, %error, "the crash count keeps this start");
        }
    }

    /// Ends the worker at its next await; the transaction is rolled back.
    pub(super) async fn abort(mut self) {
        self.stop.cancel();
        self.worker.abort();
        // Cancelled or panicked: it has ended, which is all that matters here.
        let _ = (&mut self.worker).await;
        self.lives().await;
    }

    fn list(&self) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(1);
        list.add_partition(&self.key.0, self.key.1);
        list
    }
}
