//! Listening for the writers' doorbell.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::Notify;
use tokio::time::sleep;
use waybill_outbox::CHANNEL;

const PAUSE: Duration = Duration::from_secs(1);

/// Rings `bell` for every notification and after every reconnect, for ever. On a connection of its own that never
/// begins a transaction: a listener inside one would make the server's queue of notifications grow until commits
/// fail.
pub(crate) async fn listen(options: PgConnectOptions, bell: Arc<Notify>, source: String) {
    let options = options.application_name("waybill-relay-listen");
    let mut healthy = true;
    loop {
        if let Err(error) = listen_once(&options, &bell, &mut healthy).await
            && std::mem::take(&mut healthy)
        {
            tracing::warn!(source, %error, "no hints from the writers; polling covers");
        }
        sleep(PAUSE).await;
    }
}

async fn listen_once(
    options: &PgConnectOptions,
    bell: &Notify,
    healthy: &mut bool,
) -> Result<(), sqlx::Error> {
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    *healthy = true;
    loop {
        // First after every connect: what was rung before is lost.
        bell.notify_one();
        // `None`: the connection was lost, and with it perhaps a notification. The fetch that follows finds all that
        // is unsent, so nothing is missed.
        listener.try_recv().await?;
    }
}
