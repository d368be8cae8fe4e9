//! Progress on stderr: a spinner on a terminal, plain lines elsewhere. stdout is for results only.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// The sign of success.
pub(crate) fn tick() -> &'static str {
    if stderr().is_terminal() { "\x1b[32m✓\x1b[0m" } else { "✓" }
}

/// The sign of failure.
pub(crate) fn cross() -> &'static str {
    if stderr().is_terminal() { "\x1b[31m✗\x1b[0m" } else { "✗" }
}

/// Says one line.
pub(crate) fn note(text: &str) {
    eprintln!("  {text}");
}

/// Says what begins, for steps that print their own output.
pub(crate) fn heading(text: &str) {
    if stderr().is_terminal() { eprintln!("\x1b[1m▸ {text}\x1b[0m") } else { eprintln!("▸ {text}") }
}

/// A duration as people read it.
pub(crate) fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 90.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {} s", seconds as u64 / 60, seconds as u64 % 60)
    }
}

/// A step under way.
#[derive(Debug)]
pub(crate) struct Step {
    name: String,
    bar: Option<ProgressBar>,
    began: Instant,
}

impl Step {
    /// Begins to show a step.
    pub(crate) fn begin(name: impl Into<String>) -> Self {
        let name = name.into();
        let bar = if stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.set_message(name.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            Some(bar)
        } else {
            eprintln!("… {name}");
            None
        };
        Self { name, bar, began: Instant::now() }
    }

    /// Ends it well.
    pub(crate) fn done(self) {
        self.end(tick());
    }

    /// Ends it badly; the error itself is told by whoever handles it.
    pub(crate) fn failed(self) {
        self.end(cross());
    }

    fn end(self, sign: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("{sign} {} ({})", self.name, seconds(self.began.elapsed()));
    }
}
