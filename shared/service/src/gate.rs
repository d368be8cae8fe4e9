//! The gate before the database: refuses work while too many requests wait for a connection.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use clap::Args;
use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};

use crate::http::ApiError;

/// How many refusals are looked back upon.
const WINDOW: Duration = Duration::from_secs(1);
/// Longest time that a refused client is told to wait.
const LONGEST: Duration = Duration::from_secs(10);

/// How long the queue before the database may be.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Config {
    /// Requests that may wait for a free connection; further ones are refused with 503 before any work. Too small, and
    /// short peaks are refused; too large, and everybody waits for DATABASE_ACQUIRE_TIMEOUT in vain.
    #[arg(long, env = "DATABASE_MAX_WAITING", default_value_t = 256)]
    pub database_max_waiting: usize,
}

/// A pool that knows how many wait for it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pool: PgPool,
    most: usize,
    waiting: AtomicUsize,
    refused: Mutex<Refused>,
}

/// Refusals since the window was opened.
#[derive(Debug)]
struct Refused {
    since: Instant,
    count: usize,
}

impl Gate {
    /// Before `pool`.
    pub fn new(pool: PgPool, config: &Config) -> Self {
        let refused = Mutex::new(Refused { since: Instant::now(), count: 0 });
        let most = config.database_max_waiting;
        Self(Arc::new(Inner { pool, most, waiting: AtomicUsize::new(0), refused }))
    }

    /// The pool, for what no client waits for.
    pub fn pool(&self) -> &PgPool {
        &self.0.pool
    }

    /// Whether a new request is worth beginning. To be asked before a token, a body or anything else is looked at.
    ///
    /// # Errors
    /// 503 `overloaded`; `Retry-After` is 1, 2, 4, 8 or 10 s, the longer the more were refused within a second.
    pub fn check(&self) -> Result<(), ApiError> {
        if !self.is_full() {
            return Ok(());
        }
        let detail = "too many requests wait for the database; nothing was done";
        Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
            .retry_after(retry_after(self.refuse(), self.0.most)))
    }

    /// A connection, after at most the pool's acquire time-out.
    ///
    /// # Errors
    /// What the pool answers; [`sqlx::Error::PoolTimedOut`] at once while too many wait.
    pub async fn acquire(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        if self.is_full() {
            self.refuse();
            return Err(sqlx::Error::PoolTimedOut);
        }
        let _waiting = Waiting::new(&self.0.waiting);
        self.0.pool.acquire().await
    }

    fn is_full(&self) -> bool {
        // Whoever is about to take a free connection does not wait for one.
        let pool = &self.0.pool;
        let connections = usize::try_from(pool.options().get_max_connections()).unwrap_or(usize::MAX);
        let used = usize::try_from(pool.size()).unwrap_or(usize::MAX).saturating_sub(pool.num_idle());
        let free = connections.saturating_sub(used);
        self.0.waiting.load(Ordering::Relaxed) >= self.0.most.max(1) + free
    }

    /// Counts a refusal; gives the number of those before it in this window.
    fn refuse(&self) -> usize {
        let mut refused = self.0.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.since.elapsed() >= WINDOW {
            tracing::warn!(waiting = self.0.most, "requests are refused: too many wait for the database");
            *refused = Refused { since: Instant::now(), count: 0 };
        }
        refused.count += 1;
        refused.count - 1
    }
}

/// Counted while it lives, also when the waiting is given up.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Doubles with the depth: refused within the window, in multiples of the queue.
fn retry_after(refused: usize, most: usize) -> Duration {
    let depth = refused / most.max(1);
    let doublings = usize::BITS - depth.leading_zeros();
    Duration::from_secs(1 << doublings.min(4)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deeper_the_later() {
        for (refused, seconds) in
            [(0, 1), (9, 1), (10, 2), (19, 2), (20, 4), (39, 4), (40, 8), (79, 8), (80, 10), (usize::MAX, 10)]
        {
            assert_eq!(retry_after(refused, 10).as_secs(), seconds, "{refused}");
        }
        assert_eq!(retry_after(1, 0).as_secs(), 2);
    }
}
