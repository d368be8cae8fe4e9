//! The rules one by one, and the promises under random outcomes.

mod promises;
mod rules;

use std::time::Duration;

use tokio::time::timeout;
use uuid::Uuid;

use super::{Breaker, BreakerSettings, Pass, Ruling};

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn settings(probe: Duration) -> BreakerSettings {
    BreakerSettings { probe_min: probe, probe_max: probe, ..BreakerSettings::default() }
}

async fn soon<T>(wait: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), wait).await.expect("in time")
}

/// Polls once.
async fn waits(admission: impl Future<Output = Pass>) -> bool {
    timeout(Duration::ZERO, admission).await.is_err()
}

/// Handles the message with the pass, in vain.
fn fails(breaker: &Breaker, pass: Pass, id: Uuid) -> Ruling {
    pass.tries(id);
    let ruling = breaker.failed_transiently(id, true);
    drop(pass);
    ruling
}
