//! What the supervisor tells the foreground: one JSON object a line on its standard output.

use std::io::{Write, stdout};

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event {
    /// A step begins; the step before is done.
    Step { name: String },
    /// Everything runs.
    Ready,
    /// Nothing runs, and why.
    Failed { message: String },
}

/// Tells the foreground, if there still is one.
pub(crate) fn send(event: &Event) {
    if let Ok(line) = serde_json::to_string(event) {
        let _ = writeln!(stdout(), "{line}");
    }
}

/// A step begins.
pub(crate) fn step(name: impl Into<String>) {
    send(&Event::Step { name: name.into() });
}
