//! Takes runs that nobody drives, and drives them.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::run::{self, Context};
use super::send::Sender;
use super::store;
use crate::Settings;
use crate::metrics::Metrics;

/// Runs that a process drives at the same time.
const AT_ONCE: usize = 8;
/// Between two looks for runs that nobody drives.
const LOOK: Duration = Duration::from_millis(500);

/// What the API has of the runs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Runs {
    wake: Arc<Notify>,
    sender: Sender,
}

impl Runs {
    /// Of a process.
    pub fn new(sender: Sender) -> Self {
        Self { wake: Arc::default(), sender }
    }

    /// There may be a run to drive.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Drives runs until `shutdown`; then gives them back, each after the record that is on its way.
    pub async fn run(
        self,
        pool: PgPool,
        settings: Arc<Settings>,
        metrics: Metrics,
        shutdown: CancellationToken,
    ) {
        let context = Arc::new(Context {
            pool,
            sender: self.sender.clone(),
            // One for each life of a process: what an earlier life held is taken over like a stranger's.
            owner: Uuid::now_v7(),
            lease: settings.replay_lease,
            outcome_timeout: settings.outcome_timeout,
            metrics,
        });
        let mut driven = JoinSet::new();
        while !shutdown.is_cancelled() {
            while driven.len() < AT_ONCE {
                match store::claim(&context.pool, context.owner, context.lease).await {
                    Ok(Some(run)) => {
                        tracing::info!(replay_id = %run.replay_id, "replay is driven here");
                        let (context, shutdown) = (context.clone(), shutdown.clone());
                        driven.spawn(async move {
                            let id = run.replay_id;
                            if let Err(error) = run::drive(&context, run, &shutdown).await {
                                tracing::warn!(replay_id = %id, error = format!("{error:#}"), "replay is interrupted; it goes on");
                            }
                        });
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(%error, "runs cannot be looked for");
                        break;
                    }
                }
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(LOOK) => {}
                Some(_) = driven.join_next() => {}
                () = shutdown.cancelled() => {}
            }
        }
        driven.join_all().await;
    }
}
