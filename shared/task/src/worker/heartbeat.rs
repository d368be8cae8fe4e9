//! Keeps a lease while its attempt runs.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Settings;
use crate::store::{Held, Store};

/// Pause after a heartbeat that the database did not take.
const AGAIN: Duration = Duration::from_secs(1);

/// Moves the end of the lease until dropped. Cancels `lost` when the token is not ours any more, or when by our own clock
/// the lease may have ended without a heartbeat: from then on somebody else may run the task.
pub(super) async fn beat(
    store: Store,
    held: Held,
    settings: Settings,
    began: Instant,
    lost: CancellationToken,
) {
    let mut leased = began;
    let mut wait = settings.heartbeat;
    loop {
        let end = leased + settings.lease;
        sleep(wait.min(end.saturating_duration_since(Instant::now()))).await;
        if Instant::now() >= end {
            break;
        }
        let at = Instant::now();
        // A beat that hangs must not outlast the lease unseen.
        let rest = end.saturating_duration_since(at);
        match tokio::time::timeout(rest, store.heartbeat(held, settings.lease)).await {
            Ok(Ok(Some(_))) => {
                leased = at;
                wait = settings.heartbeat;
            }
            Ok(Ok(None)) | Err(_) => break,
            Ok(Err(error)) => {
                tracing::warn!(%error, task.id = %held.id, "task heartbeat failed; trying on");
                wait = AGAIN.min(settings.heartbeat);
            }
        }
    }
    lost.cancel();
}
