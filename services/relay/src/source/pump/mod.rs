//! The loop of a source. One task owns the window, the cursors, the leases and the producer, so that rows are
//! enqueued by one hand and in order; every wait, for the database or the broker, happens in a task beside it.

mod deliver;
mod end;
mod fetch;
mod floor;
mod lease;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry::global::{self, BoxedTracer};
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use sqlx::postgres::PgConnectOptions;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use self::watch::Watch;
use super::cursor::{Cursors, Page};
use super::floor::Floor;
use super::lease::{Leases, Round};
use super::mark::Marks;
use super::order::Order;
use super::pause::Pauses;
use super::producer::{self, Producers, Report};
use super::readiness::Readiness;
use super::row::{Key, RowId};
use super::store::{self, Ceiling, Fetched, Lowest, Purged, Sample, Store};
use super::window::Window;
use super::{listen, producer::Discarded};
use crate::config::{Database, Tuning};
use crate::metrics::{Latency, Stats};

/// Pause after the database failed.
const RETRY: Duration = Duration::from_millis(500);
/// Pause between questions to a cluster that is down.
const ASK: Duration = Duration::from_secs(1);
/// Reports taken from the producer at once.
const REPORTS: usize = 1024;

/// What a pump is made of.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The database.
    pub database: Database,
    /// Connection settings of Kafka.
    pub kafka: Vec<(String, String)>,
    /// Goes before every topic.
    pub prefix: String,
    /// Pace and budgets.
    pub tuning: Tuning,
    /// Name of this relay.
    pub instance: String,
    /// Figures.
    pub stats: Arc<Stats>,
    /// Told about the database.
    pub databases: Readiness,
    /// Told about the broker.
    pub brokers: Readiness,
}

/// Why a pump ended although nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Kafka client refuses its settings.
    #[error("the Kafka producer cannot be made")]
    Kafka(#[from] KafkaError),
    /// A bug.
    #[error("a task of the relay panicked")]
    Task(#[from] JoinError),
}

/// What a task beside the loop brings back.
#[derive(Debug)]
enum Event {
    Fetched { number: u64, pages: Vec<Page>, result: Result<Fetched, store::Error> },
    Ceiling { forgotten: u64, result: Result<Ceiling, store::Error> },
    Lowest { forgotten: u64, result: Result<Lowest, store::Error> },
    Below { forgotten: u64, result: Result<Vec<(i16, i64, i64)>, store::Error> },
    Marked { ids: Vec<RowId>, result: Result<u64, store::Error> },
    Round(Result<Round, store::Error>),
    Released { buckets: Vec<i16>, result: Result<(), store::Error> },
    Buried { id: RowId, key: Arc<Key>, result: Result<(), store::Error> },
    Held(Result<u64, store::Error>),
    Sampled(Result<Sample, store::Error>),
    Purged(Result<Purged, store::Error>),
    Topic { topic: Arc<str>, answer: Result<(), RDKafkaErrorCode> },
    Cluster(Result<(), RDKafkaErrorCode>),
    Discarded,
}

/// What caused a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    Hint,
    Poll,
}

/// Work that runs in a task beside the loop, at most one of each.
#[derive(Debug, Default)]
struct Running {
    fetch: bool,
    floor: bool,
    below: bool,
    mark: bool,
    round: bool,
    release: bool,
    sample: bool,
    purge: bool,
    ask: bool,
}

/// When something is to be done next.
#[derive(Debug)]
struct Pace {
    fetch: Instant,
    round: Instant,
    sample: Instant,
    purge: Instant,
    purge_after: i64,
    below: Instant,
    /// Which eighth of the buckets is looked at next from the very start.
    eighth: i16,
    /// The last fetch left something out for want of room.
    crowded: bool,
    wake: Wake,
}

/// See the module.
#[derive(Debug)]
pub struct Pump {
    setup: Setup,
    ce_source: String,
    store: Store,
    window: Window,
    cursors: Cursors,
    floor: Floor,
    /// Connections made when the floors were last good.
    connections: u64,
    leases: Leases,
    marks: Marks,
    order: Order,
    producers: Producers,
    reports: mpsc::UnboundedReceiver<Report>,
    tasks: JoinSet<Event>,
    running: Running,
    pace: Pace,
    watch: Watch,
    pauses: Pauses,
    /// Topics whose partition in a bucket takes nothing.
    standing: BTreeSet<(i16, Arc<str>)>,
    latency: Latency,
    tracer: BoxedTracer,
    stopping: bool,
}

impl Pump {
    /// A pump that has connected to nothing yet.
    ///
    /// # Errors
    /// [`Error::Kafka`].
    pub fn new(setup: Setup) -> Result<Self, Error> {
        let (tuning, name) = (&setup.tuning, setup.database.name.as_str());
        let settings: ClientConfig =
            producer::settings(&setup.kafka, name, tuning.relay_in_flight_rows, tuning.outbox_max_bytes);
        let (sender, reports) = mpsc::unbounded_channel();
        let now = Instant::now();
        Ok(Self {
            ce_source: format!("/{name}"),
            store: setup.database.store(),
            window: Window::default(),
            cursors: Cursors::default(),
            floor: Floor::new(tuning.relay_floor_interval, now),
            connections: 0,
            leases: Leases::new(tuning.relay_lease_ttl),
            marks: Marks::new(tuning.relay_mark_interval, tuning.relay_mark_batch as usize),
            order: Order::default(),
            producers: Producers::new(settings, sender)?,
            reports,
            tasks: JoinSet::new(),
            running: Running::default(),
            pace: Pace {
                fetch: now,
                round: now,
                sample: now,
                purge: now,
                purge_after: 0,
                below: now,
                eighth: 0,
                crowded: false,
                wake: Wake::Poll,
            },
            watch: Watch::new(now),
            pauses: Pauses::new(tuning.relay_topic_retry),
            standing: BTreeSet::new(),
            latency: Latency::new(name),
            tracer: global::tracer("waybill-relay"),
            stopping: false,
            setup,
        })
    }

    /// Relays until `shutdown`, then ends in order: see [`Pump::end`].
    ///
    /// # Errors
    /// See [`Error`]. Outages of the database and of Kafka are none: the pump waits for them to pass.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Error> {
        let bell = Arc::new(Notify::new());
        let options: PgConnectOptions = self.setup.database.options.clone();
        let name = self.setup.database.name.clone();
        let mut listener = JoinSet::new();
        listener.spawn(listen::listen(options, bell.clone(), name));
        let mut reports = Vec::with_capacity(REPORTS);
        while !shutdown.is_cancelled() {
            let due = self.due(Instant::now());
            tokio::select! {
                () = shutdown.cancelled() => {}
                // Not while a fetch runs: the bell stays rung until the next one can begin.
                () = bell.notified(), if !self.running.fetch => {
                    self.pace.fetch = Instant::now();
                    self.pace.wake = Wake::Hint;
                }
                _ = self.reports.recv_many(&mut reports, REPORTS) => {}
                Some(done) = self.tasks.join_next() => self.on_event(done?)?,
                () = sleep_until(due.into()) => {}
            }
            self.turn(&mut reports)?;
        }
        listener.shutdown().await;
        self.end().await
    }

    /// Handles what came, and starts what is due.
    fn turn(&mut self, reports: &mut Vec<Report>) -> Result<(), Error> {
        self.window.tick(Instant::now());
        for report in reports.drain(..) {
            self.on_report(report)?;
        }
        while let Some(done) = self.tasks.try_join_next() {
            self.on_event(done?)?;
        }
        let now = Instant::now();
        self.expire_leases(now)?;
        self.renew_leases(now);
        self.release_leases(now);
        if !self.stopping {
            self.produce()?;
            self.ask_about_topics(now);
            self.fetch(now);
            self.raise_floors(now);
            self.look_below(now);
            self.sample(now);
            self.purge(now);
        }
        self.mark(now);
        self.ask_cluster(now);
        self.count();
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Fetched { number, pages, result } => self.on_fetched(number, &pages, result),
            Event::Ceiling { forgotten, result } => self.on_ceiling(forgotten, result),
            Event::Lowest { forgotten, result } => self.on_lowest(forgotten, result),
            Event::Below { forgotten, result } => self.on_below(forgotten, result),
            Event::Marked { ids, result } => self.on_marked(ids, result),
            Event::Round(result) => self.on_round(result)?,
            Event::Released { buckets, result } => self.on_released(&buckets, result),
            Event::Buried { id, key, result } => self.on_buried(id, &key, result),
            Event::Held(result) => self.on_held(result),
            Event::Sampled(result) => self.on_sampled(result),
            Event::Purged(result) => self.on_purged(result),
            Event::Topic { topic, answer } => self.on_topic(&topic, answer),
            Event::Cluster(answer) => self.on_cluster(answer),
            Event::Discarded => {}
        }
        Ok(())
    }

    /// When the loop must turn at the latest.
    fn due(&self, now: Instant) -> Instant {
        let far = now + Duration::from_millis(250);
        let next = [
            (!self.running.round).then_some(self.pace.round),
            (!self.running.fetch && !self.stopping && self.has_room()).then_some(self.pace.fetch),
            (!self.running.mark).then(|| self.marks.due(now)).flatten(),
        ];
        next.into_iter().flatten().fold(far, Instant::min)
    }

    /// Replaces the producer. Whatever it had is of unknown fate: it leaves memory and is read again.
    fn rebuild(&mut self) -> Result<(), Error> {
        let discarded = self.producers.rebuild()?;
        self.discard(discarded);
        self.window.drop_unacked();
        self.cursors.rewind_all();
        self.order.forget();
        self.setup.stats.rebuilds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn discard(&mut self, discarded: Discarded) {
        // Dropping a producer joins its thread and purges: not here.
        self.tasks.spawn_blocking(move || {
            discarded.end();
            Event::Discarded
        });
    }
}
