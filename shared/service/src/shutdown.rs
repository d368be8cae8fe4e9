//! Signals become one token that everything else waits on.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Longest time between the signal and the end of a process.
pub const GRACE: std::time::Duration = std::time::Duration::from_secs(30);

/// A token that is cancelled at the first SIGTERM or SIGINT. A second signal ends the process at once.
///
/// # Errors
/// The signal handlers cannot be installed.
pub fn on_signal() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let name = tokio::select! { _ = terminate.recv() => "SIGTERM", _ = interrupt.recv() => "SIGINT" };
        tracing::info!(signal = name, "shutting down");
        cancelled.cancel();
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = tokio::time::sleep(GRACE) => tracing::error!("grace period is over"),
        }
        std::process::exit(1);
    });
    Ok(token)
}
