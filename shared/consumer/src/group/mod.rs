//! One member of a consumer group: the loop that polls.
//!
//! The loop never waits for a handler. It hands records to the partitions' workers, pauses a partition whose buffer
//! is full, and goes on polling, so that slow handlers cannot exceed `max.poll.interval.ms`.

mod context;
mod intake;
mod offsets;
mod partition;
mod rebalance;
mod watchdog;

use std::{
    collections::{HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use rdkafka::{
    Statistics,
    consumer::{Consumer as _, StreamConsumer},
    error::{KafkaError, RDKafkaErrorCode},
    message::{BorrowedMessage, Message as _},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::MissedTickBehavior,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    Error,
    engine::Engine,
    lane::Lane,
    line::{Kind, Line},
    record::Record,
    settings::Settings,
    status::Status,
    work::panic_text,
};
use context::{Context, Rebalance};
use offsets::Offsets;
use partition::{Partition, Report};
use watchdog::Watchdog;

/// Topic with prefix, partition. Kept in place of the client's own lists: one of those that outlives the consumer
/// makes its drop hang for ever.
type Key = (Arc<str>, i32);
type Client = StreamConsumer<Context>;

/// How often a broker is looked for while none is reachable.
const PROBE: Duration = Duration::from_secs(1);

/// Where the records of a subscription's topics go.
pub(crate) struct Route {
    pub(crate) line: Arc<Line>,
    pub(crate) lane: Arc<dyn Lane>,
}

/// Which topics of the group's subscriptions a member reads. The assignment evens out the number of partitions and not
/// their load: in one member with the many partitions of retry and replay topics, those of the source could all end up
/// at one process. Members of one group with different subscriptions are evened out apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The sources. This one drains the parks too.
    Sources,
    /// Retry and replay topics, as far as there are any.
    Aside,
}

pub(crate) struct Member {
    group: String,
    /// By which the status knows it.
    label: String,
    side: Side,
    engine: Arc<Engine>,
    routes: Vec<Arc<Route>>,
    /// Of every topic that was ever assigned.
    topics: HashMap<Arc<str>, (Arc<Route>, Kind)>,
    settings: Arc<Settings>,
    status: Status,
    client: Arc<Client>,
    rebalances: mpsc::UnboundedReceiver<Rebalance>,
    statistics: watch::Receiver<Option<Statistics>>,
    watchdog: Watchdog,
    partitions: HashMap<Key, Partition>,
    /// Revoked partitions whose batches are ending.
    draining: FuturesUnordered<BoxFuture<'static, Vec<Key>>>,
    /// Partitions that the client still waits for to be given up.
    revoked: HashSet<Key>,
    offsets: Arc<Offsets>,
    committing: Option<JoinHandle<()>>,
    drainers: Vec<AbortOnDropHandle<()>>,
    stop_draining: CancellationToken,
    reports: mpsc::UnboundedReceiver<Report>,
    report: mpsc::UnboundedSender<Report>,
    /// What the client said lately of records that it cannot decompress.
    unreadable: Option<String>,
    /// Whether messages come; spares a lock per message.
    reachable: bool,
    probed: Instant,
}

impl Side {
    pub(crate) fn label(self, group: &str) -> String {
        match self {
            Self::Sources => group.to_owned(),
            Self::Aside => format!("{group} (retries and replays)"),
        }
    }
}

impl Member {
    pub(crate) fn new(
        group: String,
        side: Side,
        engine: Arc<Engine>,
        routes: Vec<Arc<Route>>,
        settings: Arc<Settings>,
        status: Status,
    ) -> Result<Self, Error> {
        let label = side.label(&group);
        let refused = |source| Error::Client { name: group.clone(), source };
        let (rebalance, rebalances) = mpsc::unbounded_channel();
        let (statistic, statistics) = watch::channel(None);
        let client: Client = settings
            .consumer(&group)
            .create_with_context(Context::new(group.clone(), rebalance, statistic))
            .map_err(refused)?;
        let topic = |route: &Arc<Route>| match side {
            Side::Sources => route.line.source.to_string(),
            Side::Aside => route.line.pattern(),
        };
        let topics: Vec<String> = routes.iter().map(topic).collect();
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        client.subscribe(&topics).map_err(refused)?;
        let (report, reports) = mpsc::unbounded_channel();
        Ok(Self {
            group,
            label,
            side,
            engine,
            routes,
            topics: HashMap::new(),
            settings,
            status,
            client: Arc::new(client),
            rebalances,
            statistics,
            watchdog: Watchdog::default(),
            partitions: HashMap::new(),
            draining: FuturesUnordered::new(),
            revoked: HashSet::new(),
            offsets: Arc::default(),
            committing: None,
            drainers: Vec::new(),
            stop_draining: CancellationToken::new(),
            reports,
            report,
            unreadable: None,
            reachable: false,
            probed: Instant::now(),
        })
    }

    pub(crate) async fn run(mut self, shutdown: CancellationToken) -> Result<(), Error> {
        tracing::info!(group = self.group, "consumer started");
        if self.side == Side::Sources {
            self.start_draining();
        }
        let result = self.poll(&shutdown).await;
        self.close().await;
        result
    }

    async fn poll(&mut self, shutdown: &CancellationToken) -> Result<(), Error> {
        let client = Arc::clone(&self.client);
        let mut stream = client.stream();
        let mut tick = tokio::time::interval(self.settings.commit_interval.max(Duration::from_millis(1)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // In this order: a new partition has its worker before its first record is looked at.
                biased;
                () = shutdown.cancelled() => return Ok(()),
                Some(rebalance) = self.rebalances.recv() => self.rebalance(rebalance).await,
                Some(keys) = self.draining.next() => self.give_up(keys),
                Some(report) = self.reports.recv() => self.heed(report)?,
                _ = tick.tick() => self.tick(),
                Ok(()) = self.statistics.changed() => self.watch(),
                Some(received) = stream.next() => match received {
                    Ok(message) => self.dispatch(&message).await,
                    Err(error) => self.client_error(error)?,
                },
            }
        }
    }

    /// Whatever partitions this member owns: a park belongs to the group. Also of a subscription that orders no keys
    /// any more: what it has parked before must not stay.
    fn start_draining(&mut self) {
        for route in &self.routes {
            let park = route.line.drained_with();
            let (route, engine) = (Arc::clone(route), Arc::clone(&self.engine));
            let (stop, report) = (self.stop_draining.clone(), self.report.clone());
            self.drainers.push(AbortOnDropHandle::new(tokio::spawn(async move {
                let drain = AssertUnwindSafe(route.lane.drain(&engine, &route.line, park, &stop));
                if let Err(panic) = drain.catch_unwind().await {
                    let _ = report.send(Report::Panicked(panic_text(&*panic).to_owned()));
                }
            })));
        }
    }

    async fn dispatch(&mut self, message: &BorrowedMessage<'_>) {
        if !std::mem::replace(&mut self.reachable, true) {
            self.status.set_connected(&self.label, true);
        }
        let mut key = self.key(message);
        if key.as_ref().is_none_or(|key| !self.partitions.contains_key(key)) {
            while let Ok(rebalance) = self.rebalances.try_recv() {
                self.rebalance(rebalance).await;
            }
            key = self.key(message);
        }
        let Some(key) = key else { return };
        // Still unknown: fetched before the partition was revoked, and its next owner's.
        let Some(partition) = self.partitions.get_mut(&key) else { return };
        partition.push(Record::copy(message, Arc::clone(&key.0)), &self.client);
    }

    fn key(&self, message: &BorrowedMessage<'_>) -> Option<Key> {
        let (topic, _) = self.topics.get_key_value(message.topic())?;
        Some((Arc::clone(topic), message.partition()))
    }

    fn heed(&mut self, report: Report) -> Result<(), Error> {
        match report {
            Report::Drained(key) => {
                if let Some(partition) = self.partitions.get_mut(&key) {
                    partition.resume(&self.client);
                }
                Ok(())
            }
            // Its partition would stand still unseen.
            Report::Panicked(text) => Err(Error::Worker { group: self.group.clone(), text }),
        }
    }

    /// Commits what has become finished, at most once per interval and never two at a time.
    fn tick(&mut self) {
        let idle = self.committing.as_ref().is_none_or(JoinHandle::is_finished);
        if idle && self.offsets.is_dirty() {
            let (offsets, client) = (Arc::clone(&self.offsets), Arc::clone(&self.client));
            self.committing = Some(tokio::spawn(async move { offsets.commit(&client).await }));
        }
        if !self.status.is_connected(&self.label) && self.probed.elapsed() > PROBE {
            self.probed = Instant::now();
            self.probe();
        }
    }

    /// Looks for partitions that stand still in the client, and tries to move them. A resume that was not needed
    /// only makes the client deliver again what the inbox knows.
    fn watch(&mut self) {
        let Some(statistics) = &*self.statistics.borrow_and_update() else { return };
        let stalled = self.watchdog.look(statistics);
        // Not by whether messages come: where all stand still, none does.
        if !self.status.is_connected(&self.label) {
            return;
        }
        for ((topic, number), partition) in &self.partitions {
            let seen = stalled.iter().any(|(name, of)| **name == **topic && of == number);
            partition.stalled(seen, self.unreadable.as_deref(), &self.client);
        }
        // Said again while it is so.
        if stalled.is_empty() {
            self.unreadable = None;
        }
    }

    /// The client says when all brokers are gone, not when one is back.
    fn probe(&self) {
        let (client, status, group) = (Arc::clone(&self.client), self.status.clone(), self.label.clone());
        let known = self.routes.first().map(|route| route.line.source.to_string());
        tokio::task::spawn_blocking(move || {
            if client.fetch_metadata(known.as_deref(), PROBE).is_ok() && status.set_connected(&group, true) {
                tracing::info!(group, "a broker is reachable");
            }
        });
    }

    fn client_error(&mut self, error: KafkaError) -> Result<(), Error> {
        let reason = self.client.context().take_reason();
        match error.rdkafka_error_code() {
            _ if matches!(error, KafkaError::MessageConsumptionFatal(_)) => {
                return Err(Error::Fatal { group: self.group.clone(), source: error });
            }
            Some(RDKafkaErrorCode::AllBrokersDown) => {
                self.reachable = false;
                if self.status.set_connected(&self.label, false) {
                    tracing::warn!(group = self.group, "no broker is reachable");
                }
            }
            // Again and again; which partition it is, shows in the client's statistics alone.
            Some(RDKafkaErrorCode::NotImplemented | RDKafkaErrorCode::BadCompression) => {
                self.unreadable = Some(reason);
            }
            // Each lost connection; the client connects again by itself.
            Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::Resolve) => {
                tracing::debug!(group = self.group, %error, reason, "connection to a broker");
            }
            _ => tracing::warn!(group = self.group, %error, reason, "Kafka client"),
        }
        Ok(())
    }
}
