//! Waiting for a condition with a deadline: the only place of this crate that sleeps.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Sleeps for one step of a polling loop.
#[expect(clippy::disallowed_methods, reason = "there is no runtime here; every caller re-checks a condition")]
pub(crate) fn pause(step: Duration) {
    thread::sleep(step);
}

/// Polls `condition` every `step` until it holds (true) or `patience` is over (false).
pub(crate) fn until(patience: Duration, step: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        pause(step);
    }
}
