//! Delays of in-place retries: exponential with full jitter, without limit.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Doubles from `min` to `max`. Each delay is drawn from the whole range below the bound, so that partitions that
/// failed together do not come back together.
#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    bound: Duration,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, bound: min }
    }

    /// Starts again at `min`.
    pub(crate) fn reset(&mut self) {
        self.bound = self.min;
    }

    fn next(&mut self) -> Duration {
        let delay = rand::random_range(Duration::ZERO..=self.bound);
        self.bound = (self.bound * 2).min(self.max);
        delay
    }

    /// Waits; `false` when `stop` came first.
    pub(crate) async fn wait(&mut self, stop: &CancellationToken) -> bool {
        let delay = self.next();
        stop.run_until_cancelled(tokio::time::sleep(delay)).await.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_doubles_to_the_maximum_and_starts_again() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        for bound in [100, 200, 350, 350] {
            assert!(backoff.next() <= Duration::from_millis(bound));
        }
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(100));
    }
}
