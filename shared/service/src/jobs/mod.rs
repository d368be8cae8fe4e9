//! Scheduled jobs: off unless switched on by name, and each on one instance at a time.
//!
//! **Promises.** A job that is on runs about once an interval over all instances: whoever holds the job's row in
//! `messaging.job_lease` runs it, and the time of its last success is in that row, so neither a restart nor a second
//! instance runs it early. An instance that dies is followed by another once its lease has run out. A run is bounded
//! in time; its panic, error or overrun is counted and logged, and ends no process.
//!
//! **Does not promise.** That two runs never overlap: an instance that was stopped for longer than its lease may end a
//! step that it had begun. A step must therefore be right also beside another (`for update skip locked`, conditions in
//! the statement). A failed run is tried again after a tenth of the interval, at most five minutes.

mod lease;
pub mod metrics;
mod runner;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::ConfigError;

pub use runner::Jobs;

/// Longest run, when the job does not say.
const AT_MOST: Duration = Duration::from_secs(600);
/// How often [`Job::purge`] looks.
const HOURLY: Duration = Duration::from_secs(3600);

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Work = Pin<Box<dyn Future<Output = Result<u64, BoxError>> + Send>>;

/// Which jobs run here.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct Config {
    /// Scheduled jobs that run on this instance, by name, separated by commas. A job that is on nowhere is never run: what
    /// it cleans up stays. On several instances it still runs on one at a time.
    #[arg(long = "job", env = "JOBS", value_delimiter = ',')]
    pub jobs: Vec<String>,
}

/// A job: a name, an interval, and what to do.
#[derive(Clone)]
pub struct Job {
    name: &'static str,
    every: Duration,
    at_most: Duration,
    work: Arc<dyn Fn(Run) -> Work + Send + Sync>,
}

/// One run, as the job sees it.
#[derive(Debug, Clone)]
pub struct Run {
    stop: CancellationToken,
}

impl Job {
    /// Runs `work` every `every`. It gives the number of things that it dealt with, and works in steps: between two of
    /// them it asks [`Run::is_stopped`]. [`Job::purge`] is such a job.
    pub fn new<F, Fut, E>(name: &'static str, every: Duration, work: F) -> Self
    where
        F: Fn(Run) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<u64, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let work = move |run: Run| -> Work {
            let running = work(run);
            Box::pin(async move { running.await.map_err(Into::into) })
        };
        Self { name, every, at_most: AT_MOST, work: Arc::new(work) }
    }

    /// Deletes hourly what is over, step by step until a step finds nothing. Off, only a table grows.
    ///
    /// ```
    /// # use waybill_service::jobs::Job;
    /// # fn job(pool: sqlx::PgPool) {
    /// # async fn delete_some(pool: &sqlx::PgPool) -> Result<u64, sqlx::Error> { Ok(0) }
    /// Job::purge("purge-letters", pool, async |pool| delete_some(&pool).await);
    /// # }
    /// ```
    pub fn purge<F, Fut, E>(name: &'static str, pool: PgPool, step: F) -> Self
    where
        F: Fn(PgPool) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<u64, E>> + Send,
        E: Into<BoxError>,
    {
        Self::new(name, HOURLY, move |run| {
            let (pool, step) = (pool.clone(), step.clone());
            async move {
                let mut deleted = 0;
                while !run.is_stopped() {
                    match step(pool.clone()).await? {
                        0 => break,
                        some => deleted += some,
                    }
                }
                Ok::<_, E>(deleted)
            }
        })
    }

    /// Bounds a run: after this time it is stopped and counts as failed. Without it, ten minutes.
    #[must_use]
    pub fn at_most(mut self, time: Duration) -> Self {
        self.at_most = time;
        self
    }

    /// Its name, as `JOBS` gives it.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl Run {
    /// Whether the run is to end at its next step: the process stops, the lease is lost, or the time is over.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Ends when [`Run::is_stopped`] becomes true.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("name", &self.name).field("every", &self.every).finish_non_exhaustive()
    }
}

/// Whether each of `known` is on, in its order.
fn switches(known: &[Job], config: &Config) -> Result<Vec<bool>, ConfigError> {
    let wanted = || config.jobs.iter().map(|name| name.trim()).filter(|name| !name.is_empty());
    if let Some(stranger) = wanted().find(|wanted| known.iter().all(|job| job.name != *wanted)) {
        let names: Vec<_> = known.iter().map(Job::name).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(ConfigError::invalid(
            "JOBS",
            format_args!("there is no job {stranger:?}; there are: {names}"),
        ));
    }
    Ok(known.iter().map(|job| wanted().any(|wanted| wanted == job.name)).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        config: Config,
    }

    fn jobs() -> Vec<Job> {
        let nothing = |_| async { Ok::<_, std::io::Error>(0) };
        ["sweep", "purge"].map(|name| Job::new(name, Duration::from_secs(60), nothing)).to_vec()
    }

    fn on(args: &[&str]) -> Result<Vec<bool>, String> {
        let cli = Cli::try_parse_from([&["x"], args].concat()).expect("arguments");
        switches(&jobs(), &cli.config).map_err(|e| e.to_string())
    }

    #[test]
    fn jobs_are_off_until_they_are_named() {
        assert_eq!(on(&[]), Ok(vec![false, false]));
        assert_eq!(on(&["--job", ""]), Ok(vec![false, false]));
        assert_eq!(on(&["--job", "purge"]), Ok(vec![false, true]));
        assert_eq!(on(&["--job", "purge, sweep"]), Ok(vec![true, true]));
        assert_eq!(on(&["--job", "purge", "--job", "sweep"]), Ok(vec![true, true]));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_names_that_there_are() {
        let message = on(&["--job", "pruge"]).expect_err("unknown");
        assert!(["JOBS", "pruge", "sweep, purge"].iter().all(|part| message.contains(part)), "{message}");
    }
}
