//! The orderly end.

use std::time::{Duration, Instant};

use tokio::time::{sleep_until, timeout};

use super::{Error, Pump, REPORTS};

/// Longest wait for giving leases back: a database that is down must not hold up the end.
const RELEASE: Duration = Duration::from_secs(5);

impl Pump {
    /// In this order: stop fetching, wait for the acknowledgements (bounded), mark, release the leases, drop the
    /// producer, close the pools. So what was acknowledged is marked, and a restart sends nothing twice.
    pub(super) async fn end(mut self) -> Result<(), Error> {
        self.stopping = true;
        self.window.drop_waiting();
        let deadline = Instant::now() + self.setup.tuning.relay_flush_timeout;
        let mut reports = Vec::with_capacity(REPORTS);
        self.turn(&mut reports)?;
        // A round under way may be taking leases: its answer names them, so that they can be released.
        while (self.window.any_unsettled() || self.running.round) && Instant::now() < deadline {
            let due = self.due(Instant::now()).min(deadline);
            tokio::select! {
                _ = self.reports.recv_many(&mut reports, REPORTS) => {}
                Some(done) = self.tasks.join_next() => self.on_event(done?)?,
                () = sleep_until(due.into()) => {}
            }
            self.turn(&mut reports)?;
        }
        let left = self.window.in_flight().rows;
        self.tasks.shutdown().await;
        let discarded = self.producers.discard();
        if left > 0 {
            tracing::warn!(
                source = self.ce_source,
                rows = left,
                "not acknowledged in time; sent again next time"
            );
            // Nothing of them may go out once another relay can own the bucket.
            tokio::task::spawn_blocking(move || discarded.end()).await?;
            release(&self.store, &self.setup.instance, &self.leases.held()).await;
        } else {
            release(&self.store, &self.setup.instance, &self.leases.held()).await;
            tokio::task::spawn_blocking(move || discarded.end()).await?;
        }
        self.store.close().await;
        tracing::info!(source = self.ce_source, "source is closed");
        Ok(())
    }
}

async fn release(store: &super::Store, instance: &str, leases: &[(i16, i64)]) {
    let released = async {
        store.release(instance, leases).await?;
        store.sign_off(instance).await
    };
    match timeout(RELEASE, released).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "leases were not released; they end by themselves"),
        Err(_) => tracing::warn!("leases were not released in time; they end by themselves"),
    }
}
