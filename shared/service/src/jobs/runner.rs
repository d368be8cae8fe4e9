//! The loop around every job.

use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::metrics::Metrics;
use super::{BoxError, Config, Job, Run, lease, switches};
use crate::ConfigError;

/// How long an instance that died keeps others from running its job.
const LEASE: Duration = Duration::from_secs(60);
/// A job is looked at in a tenth of its interval, within these bounds.
const LOOK: std::ops::Range<Duration> = Duration::from_millis(50)..Duration::from_secs(60);
/// After a failure a job rests for a tenth of its interval, at most this long.
const REST: Duration = Duration::from_secs(300);
/// How long a run that was told to stop may take for its last step.
const LAST_STEP: Duration = Duration::from_secs(10);

/// The jobs of a process, those that are on and those that are off.
#[derive(Debug)]
pub struct Jobs {
    pool: PgPool,
    jobs: Vec<(Job, bool)>,
    owner: String,
    lease: Duration,
}

/// Why a run did not succeed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Work(BoxError),
    #[error("it panicked")]
    Panic,
    #[error("it took longer than {} s", .0.as_secs())]
    Overrun(Duration),
    #[error("the lease was lost")]
    LeaseLost,
    #[error("it did not end when it was told to stop")]
    Stuck,
    #[error("it was told to stop before its end")]
    Stopped,
}

impl Jobs {
    /// The jobs that a process knows, over the database that holds `messaging.job_lease`.
    ///
    /// # Errors
    /// `JOBS` names a job that is not among them.
    pub fn new(pool: PgPool, jobs: Vec<Job>, config: &Config) -> Result<Self, ConfigError> {
        let on = switches(&jobs, config)?;
        let jobs = jobs.into_iter().zip(on).collect();
        Ok(Self { pool, jobs, owner: Uuid::now_v7().to_string(), lease: LEASE })
    }

    /// Sets how long an instance that died keeps others from running its job. Without it, one minute.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Runs what is on until `shutdown`, and warns of each job that is off. Returns once the runs have ended, at most
    /// ten seconds after `shutdown`; dropped, it ends them at once.
    pub async fn run(self, shutdown: CancellationToken) {
        let metrics = Metrics::new();
        let mut loops = JoinSet::new();
        for (job, on) in self.jobs {
            metrics.known(job.name, job.every);
            if on {
                tracing::info!(job = job.name, every_s = job.every.as_secs(), "job is on");
            } else {
                tracing::warn!(job = job.name, "job is off here; JOBS switches it on");
            }
            let runner = Runner {
                pool: self.pool.clone(),
                owner: self.owner.clone(),
                lease: self.lease,
                metrics: metrics.clone(),
                job,
                on,
            };
            loops.spawn(runner.look_and_run(shutdown.clone()));
        }
        loops.join_all().await;
    }
}

struct Runner {
    pool: PgPool,
    owner: String,
    lease: Duration,
    metrics: Metrics,
    job: Job,
    on: bool,
}

impl Runner {
    async fn look_and_run(self, shutdown: CancellationToken) {
        loop {
            match self.look(&shutdown).await {
                Ok(()) => {}
                // The next look tries again.
                Err(error) => {
                    tracing::warn!(job = self.job.name, %error, "job lease cannot be read or written")
                }
            }
            let pause = (self.job.every / 10).clamp(LOOK.start, LOOK.end);
            // Instances that started together do not look together for long.
            let pause = pause.mul_f64(rand::random_range(0.5..1.0));
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn look(&self, shutdown: &CancellationToken) -> Result<(), sqlx::Error> {
        let Job { name, every, .. } = self.job;
        if self.on && lease::claim(&self.pool, name, &self.owner, self.lease, every).await? {
            let started = Instant::now();
            let ended = self.once(shutdown).await;
            let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            let succeeded = ended.is_ok();
            let mut rest = (every / 10).min(REST);
            match ended {
                Ok(done) => {
                    tracing::info!(job = name, done, took_ms, "job succeeded");
                    self.metrics.ran(name, true);
                }
                Err(Failure::Stopped) => {
                    // No failure: another instance may go on at once.
                    tracing::info!(job = name, took_ms, "job was stopped");
                    rest = Duration::ZERO;
                }
                Err(error) => {
                    tracing::error!(job = name, %error, took_ms, "job failed");
                    self.metrics.ran(name, false);
                }
            }
            lease::release(&self.pool, name, &self.owner, succeeded, rest).await?;
        }
        self.metrics.last_success(name, lease::last_success(&self.pool, name).await?);
        Ok(())
    }

    /// One run. In a task of its own, so that its panic ends there.
    async fn once(&self, shutdown: &CancellationToken) -> Result<u64, Failure> {
        let stop = CancellationToken::new();
        let run = Run { stop: stop.clone() };
        let mut task = AbortOnDropHandle::new(tokio::spawn((self.job.work)(run)));
        let reason = tokio::select! {
            ended = &mut task => return finished(ended),
            () = shutdown.cancelled() => Failure::Stopped,
            () = self.keep_lease() => Failure::LeaseLost,
            () = tokio::time::sleep(self.job.at_most) => Failure::Overrun(self.job.at_most),
        };
        stop.cancel();
        match tokio::time::timeout(LAST_STEP, task).await {
            // What it did is done, but it may have stopped before its end.
            Ok(ended) => finished(ended).and(Err(reason)),
            Err(_) => Err(Failure::Stuck),
        }
    }

    /// Renews the lease for as long as it is held; ends when it is lost.
    async fn keep_lease(&self) {
        let mut held = Instant::now();
        loop {
            tokio::time::sleep(self.lease / 3).await;
            match lease::renew(&self.pool, self.job.name, &self.owner, self.lease).await {
                Ok(true) => held = Instant::now(),
                Ok(false) => return,
                // Unknown: it is ours until the time is over.
                Err(_) if held.elapsed() < self.lease => {}
                Err(_) => return,
            }
        }
    }
}

fn finished(ended: Result<Result<u64, BoxError>, tokio::task::JoinError>) -> Result<u64, Failure> {
    ended.map_err(|_| Failure::Panic)?.map_err(Failure::Work)
}
