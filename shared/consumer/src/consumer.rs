//! Building and running a consumer: one member per group, all in one process.

use std::{collections::BTreeMap, sync::Arc};

use sqlx::PgPool;
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;
use waybill_event::{Event, ReplayOutcome};

use crate::{
    batch::Runner,
    codecs,
    crash::Gate,
    engine::Engine,
    group::{self, Route, Side},
    lane::Subscribed,
    line::Line,
    metrics::{self, Metrics},
    operations::Operations,
    redirect::Publisher,
    settings::Settings,
    status::Status,
};

/// Why a consumer cannot be built, or stopped running.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting that cannot work.
    #[error("consumer setting: {0}")]
    Setting(String),
    /// The client library refuses the settings.
    #[error("Kafka client of {name}")]
    Client {
        /// Group, or `dead letters`.
        name: String,
        /// What it refuses.
        source: rdkafka::error::KafkaError,
    },
    /// The client of a group gave up, for example because the broker fenced it. The process should end and start
    /// again.
    #[error("group {group}: the Kafka client stopped for good")]
    Fatal {
        /// Group with prefix.
        group: String,
        /// The client's error.
        source: rdkafka::error::KafkaError,
    },
    /// A partition's worker panicked outside of any handler. The process should end and start again.
    #[error("group {group}: a worker panicked: {text}")]
    Worker {
        /// Group with prefix.
        group: String,
        /// Text of the panic.
        text: String,
    },
    /// A task of the runtime ended by a fault of its own.
    #[error("a task of the consumer failed")]
    Task(#[source] tokio::task::JoinError),
}

/// Collects subscriptions.
#[derive(Debug)]
pub struct Builder {
    pool: PgPool,
    settings: Settings,
    subscriptions: Vec<Subscribed>,
}

/// A consumer, not yet running.
pub struct Consumer {
    pool: PgPool,
    groups: Vec<Group>,
    settings: Arc<Settings>,
    status: Status,
}

struct Group {
    name: String,
    engine: Arc<Engine>,
    routes: Vec<Arc<Route>>,
}

impl Consumer {
    /// Handlers and inbox use `pool`, whose database holds the tables of [`migrator`](crate::migrator). A batch of
    /// one partition holds one connection, at most [`Settings::parallel_batches`] together.
    #[must_use]
    pub fn builder(pool: PgPool, settings: Settings) -> Builder {
        Builder { pool, settings, subscriptions: Vec::new() }
    }

    /// The handle on what it is doing, valid before, during and after [`run`](Self::run).
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.clone()
    }

    /// What operators ask of it and tell it.
    #[must_use]
    pub fn operations(&self) -> Operations {
        let routes = self.groups.iter().flat_map(|group| group.routes.iter().cloned()).collect();
        Operations::new(self.pool.clone(), routes, self.status.clone())
    }

    /// Consumes until `shutdown`: then takes nothing new, finishes the batches under way (at most
    /// [`Settings::drain_timeout`]), commits their offsets and leaves the groups. Await it to the end: dropped in
    /// between, it leaves the groups without any of this, blocking the thread.
    ///
    /// # Errors
    /// Only what a restart of the process may mend; failing messages, databases and brokers are waited for inside.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let missing = codecs::missing();
        if !missing.is_empty() {
            tracing::warn!(
                ?missing,
                "this build of librdkafka lacks codecs; what is compressed so cannot be read"
            );
        }
        let mut members = Vec::with_capacity(self.groups.len() * 2);
        for Group { name, engine, routes } in self.groups {
            for side in [Side::Sources, Side::Aside] {
                let (engine, routes, settings) =
                    (Arc::clone(&engine), routes.clone(), Arc::clone(&self.settings));
                let (name, status) = (name.clone(), self.status.clone());
                members.push(group::Member::new(name, side, engine, routes, settings, status)?);
            }
        }
        // One group that fails takes the others down in order, so that the process can be started again whole.
        let shutdown = shutdown.child_token();
        let mut running = JoinSet::new();
        for member in members {
            running.spawn(member.run(shutdown.clone()));
        }
        let mut result = Ok(());
        while let Some(ended) = running.join_next().await {
            shutdown.cancel();
            let ended = ended.map_err(Error::Task).flatten();
            result = result.and(ended);
        }
        result
    }
}

impl Builder {
    /// Adds a subscription.
    #[must_use]
    pub fn subscribe(mut self, subscription: Subscribed) -> Self {
        self.subscriptions.push(subscription);
        self
    }

    /// Checks settings and names; does not connect.
    ///
    /// # Errors
    /// A setting or name that cannot work, a topic twice in one group, no subscription at all.
    pub fn build(self) -> Result<Consumer, Error> {
        self.settings.check()?;
        let settings = Arc::new(self.settings);
        let status = Status::default();
        let publisher = Publisher::new(&settings)
            .map_err(|source| Error::Client { name: "redirected records".to_owned(), source })?;
        let mut groups: BTreeMap<String, Vec<Arc<Route>>> = BTreeMap::new();
        for Subscribed { topic, group, order, replay_safety, lane } in self.subscriptions {
            let line = Line::new(topic, group, order, replay_safety, &settings)?;
            let routes = groups.entry(line.consumer_group.to_string()).or_default();
            if routes.iter().any(|route| route.line.topic == line.topic) {
                let (group, topic) = (line.group, line.topic);
                return Err(Error::Setting(format!("group {group} subscribes to {topic} twice")));
            }
            routes.push(Arc::new(Route { line: Arc::new(line), lane }));
        }
        if groups.is_empty() {
            return Err(Error::Setting("no subscription".to_owned()));
        }
        let metrics = Metrics::new();
        metrics::observe(&status);
        metrics::observe_lines(groups.values().flatten().map(|route| Arc::downgrade(&route.line)).collect());
        let gate = Gate::default();
        let slots = Arc::new(Semaphore::new(settings.parallel_batches));
        let outcomes = format!("{}{}", settings.topic_prefix, ReplayOutcome::TOPIC);
        let group = |(name, routes): (String, Vec<Arc<Route>>)| {
            status.add_group(&Side::Sources.label(&name), true);
            // Its topics need not exist: then it has nothing to join for.
            status.add_group(&Side::Aside.label(&name), false);
            let runner = Runner {
                pool: self.pool.clone(),
                group: name.clone(),
                settings: Arc::clone(&settings),
                metrics: metrics.clone(),
            };
            let (publisher, outcomes, gate) = (publisher.clone(), outcomes.clone(), gate.clone());
            let engine = Engine { runner, publisher, outcomes, slots: Arc::clone(&slots), gate };
            Group { name, engine: Arc::new(engine), routes }
        };
        let groups = groups.into_iter().map(group).collect();
        Ok(Consumer { pool: self.pool, groups, settings, status })
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let groups: Vec<_> = self.groups.iter().map(|group| &group.name).collect();
        f.debug_struct("Consumer").field("groups", &groups).finish_non_exhaustive()
    }
}
