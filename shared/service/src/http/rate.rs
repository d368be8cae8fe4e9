//! A rate limit per principal.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use clap::Args;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota};
use uuid::Uuid;

use super::error::ApiError;

/// Pause between two sweeps of principals that have not called for a while.
const SWEEP: Duration = Duration::from_secs(60);

/// How often one principal may call.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct RateConfig {
    /// Requests a second that one principal (subject of the token) may send, on average; above it 429. 0 switches the
    /// limit off, for load tests with few tokens.
    #[arg(long, env = "RATE_LIMIT", default_value_t = 100)]
    pub rate_limit: u32,
    /// Requests that one principal may send at once after a pause. Too small, and pages that load in parallel are
    /// refused.
    #[arg(long, env = "RATE_LIMIT_BURST", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate_limit_burst: u32,
}

/// Counts the requests of every principal; a principal costs some hundred bytes until it pauses. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RateLimit(Option<Arc<DefaultKeyedRateLimiter<Uuid>>>);

impl RateLimit {
    /// By the settings; a rate of 0 never refuses.
    pub fn new(config: &RateConfig) -> Self {
        let rate = NonZeroU32::new(config.rate_limit);
        let burst = NonZeroU32::new(config.rate_limit_burst).unwrap_or(NonZeroU32::MIN);
        let quota = rate.map(|rate| Quota::per_second(rate).allow_burst(burst));
        Self(quota.map(|quota| Arc::new(DefaultKeyedRateLimiter::keyed(quota))))
    }

    /// Counts a request of a principal whose token is good: strangers must not fill the table.
    ///
    /// # Errors
    /// 429 `rate-limited` with `Retry-After`.
    pub fn check(&self, principal: Uuid) -> Result<(), ApiError> {
        let Some(limiter) = &self.0 else { return Ok(()) };
        limiter.check_key(&principal).map_err(|early| {
            let wait = early.wait_time_from(DefaultClock::default().now());
            let after = Duration::from_secs(wait.as_secs() + 1);
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate-limited", "too many requests of one principal")
                .retry_after(after)
        })
    }

    /// Forgets principals whose pause is long enough that nothing is counted against them; for ever.
    pub async fn sweep(self) {
        let Some(limiter) = &self.0 else { return };
        loop {
            tokio::time::sleep(SWEEP).await;
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_principal_has_its_own_limit() {
        let limit = RateLimit::new(&RateConfig { rate_limit: 1, rate_limit_burst: 3 });
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert!((0..3).all(|_| limit.check(one).is_ok()));
        assert_eq!(limit.check(one).expect_err("the fourth").code(), "rate-limited");
        assert!(limit.check(other).is_ok());
    }

    #[test]
    fn zero_switches_it_off() {
        let limit = RateLimit::new(&RateConfig { rate_limit: 0, rate_limit_burst: 1 });
        assert!((0..10_000).all(|_| limit.check(Uuid::nil()).is_ok()));
    }

    #[test]
    fn who_pauses_is_forgotten() {
        let limit = RateLimit::new(&RateConfig { rate_limit: u32::MAX, rate_limit_burst: 1 });
        for n in 0..10_000 {
            drop(limit.check(Uuid::from_u128(n)));
        }
        let limiter = limit.0.expect("on");
        assert!(!limiter.is_empty());
        // At this rate everybody has paused long enough within a microsecond.
        while !limiter.is_empty() {
            limiter.retain_recent();
        }
    }
}
