//! Waiting for a condition instead of sleeping.

use std::fmt::Debug;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a test waits for what must come; generous, because machines are busy. Nothing waits it out in a test
/// that passes.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Looks until `condition` gives `Ok`, and returns what it gave.
///
/// # Panics
/// After [`PATIENCE`], with the last `Err`: say in it what is seen.
pub async fn eventually<T, E: Debug>(mut condition: impl AsyncFnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match condition().await {
            Ok(value) => return value,
            Err(seen) if Instant::now() >= deadline => panic!("never came, last seen: {seen:?}"),
            Err(_) => sleep(LOOK).await,
        }
    }
}
