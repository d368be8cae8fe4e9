//! Dying at a named point of the consumer, where a random SIGKILL hardly ever hits.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;

/// Arms `name@n`: SIGKILL at its n-th passing. Does nothing in a build without crash points.
pub(super) fn arm(point: &str) -> anyhow::Result<()> {
    let (name, nth) = point.split_once('@').context("a crash point is name@n")?;
    let nth: u64 = nth.parse().context("a crash point is name@n")?;
    let passed = AtomicU64::new(0);
    let said = point.to_owned();
    let callback = move || {
        if passed.fetch_add(1, Ordering::SeqCst) + 1 == nth {
            super::end_process(&said);
        }
    };
    fail::cfg_callback(name, callback).map_err(anyhow::Error::msg)
}
