//! Building and running a consumer: one member per group, all in one process.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use sqlx::PgPool;
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    batch::Runner,
    dead_letter::DeadLetters,
    engine::Engine,
    group::{self, Route},
    lane::Subscribed,
    metrics::{self, Metrics},
    settings::{Settings, dead_letter_topic},
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
    groups: Vec<Group>,
    settings: Arc<Settings>,
    status: Status,
}

struct Group {
    name: String,
    engine: Arc<Engine>,
    routes: HashMap<String, Route>,
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

    /// Consumes until `shutdown`: then takes nothing new, finishes the batches under way (at most
    /// [`Settings::drain_timeout`]), commits their offsets and leaves the groups. Await it to the end: dropped in
    /// between, it leaves the groups without any of this, blocking the thread.
    ///
    /// # Errors
    /// Only what a restart of the process may mend; failing messages, databases and brokers are waited for inside.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let mut members = Vec::with_capacity(self.groups.len());
        for Group { name, engine, routes } in self.groups {
            let settings = Arc::clone(&self.settings);
            members.push(group::Member::new(name, engine, routes, settings, self.status.clone())?);
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
        let dead_letters = DeadLetters::new(&settings)
            .map_err(|source| Error::Client { name: "dead letters".to_owned(), source })?;
        let mut groups: BTreeMap<String, HashMap<String, Route>> = BTreeMap::new();
        for Subscribed { topic, group, lane } in self.subscriptions {
            check_name("topic", &topic, true)?;
            // With a dot, two subscriptions could share the name of a dead-letter topic.
            check_name("group", &group, false)?;
            let prefix = &settings.topic_prefix;
            let dead_letter_topic = dead_letter_topic(prefix, &topic, &group).into();
            let name = format!("{prefix}{topic}");
            let route = Route { topic: name.as_str().into(), lane, dead_letter_topic };
            if groups.entry(format!("{prefix}{group}")).or_default().insert(name, route).is_some() {
                return Err(Error::Setting(format!("group {group} subscribes to {topic} twice")));
            }
        }
        if groups.is_empty() {
            return Err(Error::Setting("no subscription".to_owned()));
        }
        let metrics = Metrics::new();
        metrics::observe(&status);
        let slots = Arc::new(Semaphore::new(settings.parallel_batches));
        let group = |(name, routes): (String, HashMap<String, Route>)| {
            status.add_group(&name);
            let runner = Runner {
                pool: self.pool.clone(),
                group: name.clone(),
                settings: Arc::clone(&settings),
                metrics: metrics.clone(),
            };
            let (dead_letters, slots) = (dead_letters.clone(), Arc::clone(&slots));
            Group { name, engine: Arc::new(Engine { runner, dead_letters, slots }), routes }
        };
        let groups = groups.into_iter().map(group).collect();
        Ok(Consumer { groups, settings, status })
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let groups: Vec<_> = self.groups.iter().map(|group| &group.name).collect();
        f.debug_struct("Consumer").field("groups", &groups).finish_non_exhaustive()
    }
}

fn check_name(kind: &str, name: &str, dots: bool) -> Result<(), Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || (dots && c == '.');
    if name.is_empty() || name.len() > 100 || !name.chars().all(allowed) {
        let dot = if dots { " and dots" } else { ", no dots" };
        return Err(Error::Setting(format!(
            "{kind} {name:?}: a name has 1 to 100 letters, digits, dashes, underscores{dot}"
        )));
    }
    Ok(())
}
