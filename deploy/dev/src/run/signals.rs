//! Ctrl-C and SIGTERM as a flag that the polling loops look at.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Set once a signal that asks for an orderly end has come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signals(Arc<AtomicBool>);

impl Signals {
    /// Takes over SIGINT, SIGTERM and SIGHUP for the whole process.
    pub(crate) fn register() -> Result<Self> {
        let signals = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&signals.0))
                .context("registering a signal handler")?;
        }
        Ok(signals)
    }

    /// Whether one has come.
    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// As if one had come.
    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
