//! What a service writes: the handler of one kind of task.

use std::time::Duration;

use crate::{Guard, Running};

/// Does one kind of task.
///
/// Rules: at least once, so calls to others carry the task's id as idempotency key. Each call's timeout is below half
/// of the lease. The future may be dropped at any `await`: when the task was lost, or at the end of a shutdown's
/// patience.
pub trait Handler: Send + Sync + 'static {
    /// One attempt. `Ok` means done; the worker writes it, unless [`Transaction::complete`](crate::Transaction::complete)
    /// has.
    fn run(&self, task: &Running, guard: &Guard) -> impl Future<Output = Result<(), Stop>> + Send;
}

/// Why an attempt ends without the task being done.
#[derive(Debug)]
pub enum Stop {
    /// Try again, up to the limit of attempts.
    Retry {
        /// Why.
        error: anyhow::Error,
        /// After exactly this time; `None`: exponential, with full jitter.
        after: Option<Duration>,
    },
    /// No retry will help: the task is `failed`.
    Fail(anyhow::Error),
    /// The handler followed a request to cancel: the task is `cancelled`.
    Cancelled,
    /// The task is no longer this attempt's. Nothing is written; what comes from a [`Guard`] is passed on with `?`.
    Lost,
}

impl Stop {
    /// A [`Stop::Retry`] with the usual delay.
    pub fn retry(error: impl Into<anyhow::Error>) -> Self {
        Self::Retry { error: error.into(), after: None }
    }

    /// A [`Stop::Retry`] after exactly this time.
    pub fn retry_after(error: impl Into<anyhow::Error>, after: Duration) -> Self {
        Self::Retry { error: error.into(), after: Some(after) }
    }

    /// A [`Stop::Fail`] from any error.
    pub fn fail(error: impl Into<anyhow::Error>) -> Self {
        Self::Fail(error.into())
    }
}

/// Every error of the database is worth another try: attempts are limited, and what fails each time ends as `failed`.
impl From<sqlx::Error> for Stop {
    fn from(error: sqlx::Error) -> Self {
        Self::retry(error)
    }
}
