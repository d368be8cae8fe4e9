//! Signals become one token that everything else waits on.

use anyhow::Context;
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

/// Runs one part of a process; whatever way it ends, the others are told to end by `stop`.
///
/// # Errors
/// What the part answers, with its name.
pub async fn part<E: Into<anyhow::Error>>(
    stop: &CancellationToken,
    name: &'static str,
    running: impl Future<Output = Result<(), E>>,
) -> anyhow::Result<()> {
    let ended = running.await.map_err(Into::into).with_context(|| format!("{name} failed"));
    stop.cancel();
    ended
}

/// Runs all parts of a process to their end, which after `stop` may take [`GRACE`].
///
/// # Errors
/// What `parts` answers, or that the grace period was not enough; then they are dropped.
pub async fn within_grace(
    stop: &CancellationToken,
    parts: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        ended = parts => ended,
        () = too_late => Err(anyhow::anyhow!("what was running did not end within the grace period")),
    }
}
