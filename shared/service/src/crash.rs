//! Crash points for the crash tests: the process kills itself with SIGKILL at a named point.
//!
//! Compiled in only with the feature `failpoints`, which no release has.

/// Environment variable that names the point, `name` or `name@n` for its n-th passing.
pub const CRASH_AT: &str = "WAYBILL_CRASH_AT";

/// Arms the crash point named by [`CRASH_AT`]. Without the feature it does nothing.
///
/// # Errors
/// The variable's text is not `name` or `name@n`.
#[cfg(feature = "failpoints")]
pub fn arm() -> Result<(), crate::ConfigError> {
    use std::sync::atomic::{AtomicU64, Ordering};

    let Ok(text) = std::env::var(CRASH_AT) else { return Ok(()) };
    if text.is_empty() {
        return Ok(());
    }
    let (name, nth) = match text.split_once('@') {
        None => (text.clone(), Ok(1)),
        Some((name, nth)) => (name.to_owned(), nth.parse::<u64>()),
    };
    let nth = nth.map_err(|e| crate::ConfigError::invalid(CRASH_AT, e))?;
    let passed = AtomicU64::new(0);
    let point = name.clone();
    fail::cfg_callback(name, move || {
        if passed.fetch_add(1, Ordering::SeqCst) + 1 == nth {
            eprintln!("crash point {point} reached: SIGKILL");
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    })
    .map_err(|e| crate::ConfigError::invalid(CRASH_AT, e))
}

/// Arms the crash point named by [`CRASH_AT`]. Without the feature it does nothing.
///
/// # Errors
/// None.
#[cfg(not(feature = "failpoints"))]
pub fn arm() -> Result<(), crate::ConfigError> {
    Ok(())
}
