//! Building and running a worker.

mod attempt;
mod erased;
mod heartbeat;
mod intake;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::attempt::Attempt;
use self::erased::Erased;
use self::intake::{Intake, Wake};
use crate::backoff::about;
use crate::metrics::{self, Metrics};
use crate::store::{Claimed, Kinds, Store};
use crate::{Handler, Settings, Status, TaskId, Tasks};

/// How long a shutdown waits for dropped attempts to give their tasks back.
const RELEASE: Duration = Duration::from_secs(5);

/// Why a worker cannot be built, or stopped running.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting that cannot work.
    #[error("task setting: {0}")]
    Setting(String),
    /// Something outside of any handler panicked. The process should end and start again.
    #[error("the task worker failed")]
    Worker(#[source] JoinError),
}

/// Collects handlers.
#[derive(Debug)]
pub struct Builder {
    pool: PgPool,
    settings: Settings,
    handlers: BTreeMap<String, Arc<dyn Erased>>,
    attempts: BTreeMap<String, u32>,
    hand_off: Option<mpsc::Receiver<TaskId>>,
    problem: Option<String>,
}

/// A worker, not yet running.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    hand_off: Option<mpsc::Receiver<TaskId>>,
}

#[derive(Debug)]
struct Shared {
    pool: PgPool,
    store: Store,
    settings: Settings,
    handlers: BTreeMap<String, Arc<dyn Erased>>,
    kinds: Kinds,
    /// Attempts at most, by kind.
    limits: BTreeMap<String, u32>,
    metrics: Metrics,
}

impl Builder {
    /// Adds the handler of a kind. Tasks of other kinds are left to other workers.
    #[must_use]
    pub fn on(mut self, kind: impl Into<String>, handler: impl Handler) -> Self {
        let kind = kind.into();
        if self.handlers.insert(kind.clone(), Arc::new(handler)).is_some() {
            self.problem = Some(format!("kind {kind} has two handlers"));
        }
        self
    }

    /// The limit of attempts of one kind, instead of [`Settings::attempts`].
    #[must_use]
    pub fn attempts(mut self, kind: impl Into<String>, most: u32) -> Self {
        self.attempts.insert(kind.into(), most);
        self
    }

    /// Listens to the immediate tries of `tasks`. One worker can.
    #[must_use]
    pub fn hand_off(mut self, tasks: &Tasks) -> Self {
        self.hand_off = tasks.take();
        if self.hand_off.is_none() {
            self.problem = Some("another worker listens to these tasks".to_owned());
        }
        self
    }

    /// Checks settings and kinds; does not connect.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub fn build(self) -> Result<Worker, Error> {
        self.settings.check()?;
        if let Some(problem) = self.problem {
            return Err(Error::Setting(problem));
        }
        if self.handlers.is_empty() {
            return Err(Error::Setting("no handler".to_owned()));
        }
        for (kind, most) in &self.attempts {
            if *most == 0 || !self.handlers.contains_key(kind) {
                return Err(Error::Setting(format!(
                    "attempts of kind {kind}: it has no handler, or 0 of them"
                )));
            }
        }
        let limit = |kind: &String| self.attempts.get(kind).copied().unwrap_or(self.settings.attempts);
        let limits: BTreeMap<_, _> = self.handlers.keys().map(|kind| (kind.clone(), limit(kind))).collect();
        let shared = Shared {
            store: Store::new(&self.pool),
            pool: self.pool,
            settings: self.settings,
            handlers: self.handlers,
            kinds: Kinds::new(limits.clone()),
            metrics: Metrics::new(limits.keys().cloned().collect()),
            limits,
        };
        Ok(Worker { shared: Arc::new(shared), hand_off: self.hand_off })
    }
}

impl Worker {
    /// Handlers use `pool`, whose database holds the tables of [`migrator`](crate::migrator). The worker's own statements
    /// have up to four more connections, so that handlers cannot keep a heartbeat from being written.
    #[must_use]
    pub fn builder(pool: PgPool, settings: Settings) -> Builder {
        let (handlers, attempts) = Default::default();
        Builder { pool, settings, handlers, attempts, hand_off: None, problem: None }
    }

    /// Runs tasks until `shutdown`: then takes nothing new, waits for the attempts under way (at most
    /// [`Settings::drain_timeout`]), drops the rest and gives their tasks back, and closes its own connections. Await it
    /// to the end: what is dropped in between waits for the end of its lease.
    ///
    /// # Errors
    /// Only what a restart of the process may mend; failing tasks and databases are waited for inside.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Self { shared, hand_off } = self;
        let sampler = AbortOnDropHandle::new(tokio::spawn(sample(shared.clone())));
        let stop = CancellationToken::new();
        let mut attempts = JoinSet::new();
        let mut intake = Intake::new(hand_off, shared.settings.poll);
        loop {
            let free = shared.settings.workers - attempts.len();
            let wake = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(ended) = attempts.join_next(), if !attempts.is_empty() => {
                    intake.next_of_key(ended.map_err(Error::Worker)?);
                    continue;
                }
                wake = intake.next(free), if free > 0 => wake,
            };
            let most = free.min(shared.settings.claim);
            for (claimed, at) in shared.claim(&mut intake, wake, most).await {
                fail::fail_point!("task.after_claim");
                attempts.spawn(Attempt::new(&shared, claimed, at).run(stop.clone()));
            }
        }
        let settings = &shared.settings;
        drop(intake);
        if timeout(settings.drain_timeout, all(&mut attempts)).await.is_err() {
            tracing::warn!(attempts = attempts.len(), "task attempts outlast the shutdown and are dropped");
            stop.cancel();
            // Each gives its task back; what the database does not take in time waits for the end of its lease.
            let _ = timeout(RELEASE, all(&mut attempts)).await;
        }
        attempts.shutdown().await;
        drop(sampler);
        shared.store.close().await;
        Ok(())
    }
}

impl Shared {
    /// Claims for a wake-up, and says when each lease began at the latest.
    async fn claim(&self, intake: &mut Intake, wake: Wake, most: usize) -> Vec<(Claimed, Instant)> {
        let at = Instant::now();
        let claimed = match wake {
            Wake::Poll => self.claim_due(intake, most).await,
            Wake::Named { ids, keys } => {
                self.store.claim_named(&self.kinds, self.settings.lease, most, &ids, &keys).await
            }
        };
        match claimed {
            Ok(claimed) => {
                intake.succeeded();
                claimed
                    .into_iter()
                    .filter(|claimed| !self.is_over(claimed))
                    .map(|claimed| (claimed, at))
                    .collect()
            }
            Err(error) => {
                intake.failed(&error);
                Vec::new()
            }
        }
    }

    /// Goes on until all that is due was seen, in steps that are bounded however much is blocked by its key.
    async fn claim_due(&self, intake: &mut Intake, most: usize) -> Result<Vec<Claimed>, sqlx::Error> {
        let cursor = intake.cursor();
        let claimed = self.store.claim_due(&self.kinds, self.settings.lease, most, cursor).await?;
        if claimed.len() >= most {
            intake.poll_on(cursor);
            return Ok(claimed);
        }
        match self.store.claim_end(cursor).await {
            Ok(Some(end)) => intake.poll_on(Some(end)),
            Ok(None) => intake.poll_later(),
            // What was claimed must run.
            Err(error) => intake.failed(&error),
        }
        Ok(claimed)
    }

    /// The claim met a task whose last attempt never reported.
    fn is_over(&self, claimed: &Claimed) -> bool {
        let over = claimed.status == Status::Failed;
        if over {
            tracing::error!(
                task.id = %claimed.id,
                task.kind = claimed.kind,
                "task failed: its last attempt did not report"
            );
            self.metrics.ended(&claimed.kind, metrics::FAILED, 0.0);
        }
        over
    }
}

async fn all(attempts: &mut JoinSet<Option<String>>) {
    while attempts.join_next().await.is_some() {}
}

async fn sample(shared: Arc<Shared>) {
    let mut healthy = true;
    loop {
        match shared.store.sample().await {
            Ok(seen) => {
                shared.metrics.sampled(seen);
                healthy = true;
            }
            Err(error) if std::mem::take(&mut healthy) => {
                tracing::warn!(%error, "tasks cannot be counted");
            }
            Err(_) => {}
        }
        tokio::time::sleep(about(shared.settings.sample)).await;
    }
}
