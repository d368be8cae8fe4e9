//! Delays between attempts: exponential with full jitter.

use std::time::Duration;

use crate::Settings;

/// Largest delay after an attempt, counted from 1.
fn bound(settings: &Settings, attempt: u32) -> Duration {
    let doubled =
        2u32.checked_pow(attempt.saturating_sub(1)).and_then(|by| settings.retry_min.checked_mul(by));
    doubled.map_or(settings.retry_max, |bound| bound.min(settings.retry_max))
}

/// Drawn from the whole range below the bound: tasks that failed together do not come back together.
pub(crate) fn delay(settings: &Settings, attempt: u32) -> Duration {
    rand::random_range(Duration::ZERO..=bound(settings, attempt))
}

/// A time give or take a fifth, so that instances do not look at the same moment.
pub(crate) fn about(time: Duration) -> Duration {
    time.mul_f64(rand::random_range(0.8..=1.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_doubles_from_a_second_to_five_minutes() {
        let settings = Settings::default();
        let bounds: Vec<u64> =
            [1, 2, 3, 4, 9, 10, 40, u32::MAX].map(|n| bound(&settings, n).as_secs()).into();
        assert_eq!(bounds, [1, 2, 4, 8, 256, 300, 300, 300]);
    }

    #[test]
    fn a_delay_is_drawn_from_the_whole_range() {
        let settings = Settings::default();
        let delays: Vec<Duration> = (0..1_000).map(|_| delay(&settings, 4)).collect();
        assert!(delays.iter().all(|delay| *delay <= Duration::from_secs(8)));
        assert!(delays.iter().any(|delay| *delay < Duration::from_secs(1)));
        assert!(delays.iter().any(|delay| *delay > Duration::from_secs(7)));
    }
}
