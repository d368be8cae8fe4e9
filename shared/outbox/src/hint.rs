//! The doorbell: tells the relay that something was committed.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// The channel that the relay listens on.
pub const CHANNEL: &str = "messaging_outbox";

/// At most one notification in this time.
const INTERVAL: Duration = Duration::from_millis(5);
/// Pause after a failure; meanwhile the relay's polling covers.
const PAUSE: Duration = Duration::from_secs(1);
/// A notification that takes longer is given up with its connection.
const DEADLINE: Duration = Duration::from_secs(2);

/// Rings the relay after commits: at most one empty `NOTIFY` each 5 ms, on a connection of its own.
///
/// Rule: never `NOTIFY` inside the business transaction. It takes a lock of the whole cluster at commit and was
/// measured to cut commits to a third at 32 writers. This bell may be lost; the relay polls as well.
#[derive(Debug, Clone)]
pub struct Hint {
    bell: Arc<Notify>,
}

impl Hint {
    /// Starts the process's one bell for a database; it stops with `shutdown`.
    pub fn start(options: PgConnectOptions, shutdown: CancellationToken) -> Self {
        let bell = Arc::new(Notify::new());
        let rung = bell.clone();
        tokio::spawn(async move {
            shutdown.run_until_cancelled_owned(ring_for_ever(options, rung)).await;
        });
        Self { bell }
    }

    /// Rings; returns at once and never fails.
    pub fn ring(&self) {
        self.bell.notify_one();
    }
}

async fn ring_for_ever(options: PgConnectOptions, rung: Arc<Notify>) {
    let mut connection: Option<PgConnection> = None;
    let mut healthy = true;
    loop {
        rung.notified().await;
        let next = Instant::now() + INTERVAL;
        match timeout(DEADLINE, notify(&mut connection, &options)).await {
            Ok(Ok(())) => healthy = true,
            failure => {
                if std::mem::take(&mut healthy) {
                    let reason = failure.map_or_else(|_| "timed out".to_owned(), |r| format!("{r:?}"));
                    tracing::warn!(reason, "outbox hint failed; the relay polls meanwhile");
                }
                connection = None;
                sleep_until(Instant::now() + PAUSE).await;
            }
        }
        sleep_until(next).await;
    }
}

async fn notify(
    connection: &mut Option<PgConnection>,
    options: &PgConnectOptions,
) -> Result<(), sqlx::Error> {
    let connection = match connection {
        Some(connection) => connection,
        none => none.insert(options.clone().disable_statement_logging().connect().await?),
    };
    sqlx::query!("notify messaging_outbox").execute(connection).await?;
    Ok(())
}
