//! Settings of a worker.

use std::time::Duration;

use crate::Error;

/// Settings of a [`Worker`](crate::Worker). Start from the default and change what must differ.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Attempts at the same time. Too few: due tasks wait; too many: the pool is empty for others.
    pub workers: usize,
    /// Most tasks taken by one claim; never more than workers are free.
    pub claim: usize,
    /// How long a claimed task is safe from others without a heartbeat. Too short: a hiccup runs it twice; too long:
    /// what a crash left waits that long.
    pub lease: Duration,
    /// Time between heartbeats, at most a third of the lease.
    pub heartbeat: Duration,
    /// Time between two looks for due tasks, give or take a fifth. Bounds the lateness of what was not handed off.
    pub poll: Duration,
    /// Bound of the first delay; doubles with each attempt. The delay is drawn from the whole range below.
    pub retry_min: Duration,
    /// Largest bound of a delay.
    pub retry_max: Duration,
    /// Attempts after which a task is `failed`, unless [`Builder::attempts`](crate::Builder::attempts) says otherwise.
    pub attempts: u32,
    /// How long a shutdown waits for attempts; then they are dropped, and their tasks are given back.
    pub drain_timeout: Duration,
    /// Time between two samples of the gauges.
    pub sample: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: 8,
            claim: 100,
            lease: Duration::from_secs(120),
            heartbeat: Duration::from_secs(40),
            poll: Duration::from_secs(1),
            retry_min: Duration::from_secs(1),
            retry_max: Duration::from_secs(300),
            attempts: 12,
            drain_timeout: Duration::from_secs(20),
            sample: Duration::from_secs(15),
        }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |problem: &'static str| Err(Error::Setting(problem.to_owned()));
        if self.workers == 0 || self.claim == 0 || self.attempts == 0 {
            return wrong("workers, claim and attempts must not be 0");
        }
        if self.heartbeat.is_zero() || self.heartbeat * 3 > self.lease {
            return wrong("heartbeat must not be 0 nor over a third of the lease");
        }
        if self.poll.is_zero() || self.sample.is_zero() {
            return wrong("poll and sample must not be 0");
        }
        if self.retry_min.is_zero() || self.retry_max < self.retry_min {
            return wrong("retry_min must not be 0 nor over retry_max");
        }
        Ok(())
    }
}
