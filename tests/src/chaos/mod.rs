//! Random faults against the real binaries. A run is named by its seed: the same seed chooses the same faults, and
//! what the machine adds of its own is the machine's.

pub mod consume;
pub mod orders;
pub mod outage;
pub mod relay;

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use waybill_testkit::process::Process;

/// A seed for a run that was not given one; printed, so that the run can be had again.
pub fn fresh_seed() -> u64 {
    rand::random()
}

/// The faults of a seed.
pub(crate) fn dice(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// A random duration between two numbers of milliseconds.
pub(crate) fn between(dice: &mut StdRng, from_ms: u64, to_ms: u64) -> Duration {
    Duration::from_millis(dice.random_range(from_ms..to_ms))
}

/// Sends a signal to a running process; false when it has ended.
pub(crate) fn signal(process: &Process, signal: Signal) -> bool {
    let pid = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
}
