//! `waybill-relay`: publishes the transactional outboxes of any number of databases to Kafka.
//!
//! **Promises.** At least once; the *first* occurrence of each id is in key order. At most one row per (topic, key)
//! is in flight, so a row that Kafka refuses for good blocks its own key and nothing else. A row is marked only
//! after the broker acknowledged it. Several relays may run over one database: each bucket has one owner.
//!
//! **Does not promise.** A stalled relay may send an old id again later, so last-write-wins readers compare
//! `version`. After an asynchronous database failover an event may exist without its row.

pub mod app;
pub mod config;
pub mod dead;
pub mod metrics;
pub mod republish;
pub mod source;
pub mod status;
pub mod topics;

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::Args;
use sqlx::Connection as _;
use tokio_util::sync::CancellationToken;
use waybill_service::health::{self, ProbeConfig};
use waybill_service::{crash, migrations, telemetry};

pub use app::App;
pub use config::Config;

/// Runs the relay until `shutdown`.
///
/// # Errors
/// A wrong setting, an address that cannot be bound, or the end of a source that nobody asked for.
pub async fn serve(config: Config, shutdown: CancellationToken) -> anyhow::Result<()> {
    let telemetry = telemetry::init("waybill-relay", &config.telemetry)?;
    crash::arm()?;
    let result = match App::build(config).await {
        Ok(app) => app.run(shutdown).await,
        Err(error) => Err(error),
    };
    telemetry.shutdown().await;
    Ok(result?)
}

/// Applies the outbox's migrations to every source.
///
/// # Errors
/// A wrong setting, a database that cannot be reached, a migration that fails; the message names the source.
pub async fn migrate(sources: config::Sources) -> anyhow::Result<()> {
    for database in sources.parse()? {
        let options = database.options.application_name("waybill-relay-migrate");
        let what = || format!("source {:?} cannot be migrated", database.name);
        let mut connection = source::store::connect(&options).await.with_context(what)?;
        let applied = migrations::apply(&mut connection, waybill_outbox::migrator()).await;
        for later in applied.with_context(what)? {
            println!("{}: {later} is of a later version and is left as it is", database.name);
        }
        connection.close().await?;
        println!("{}: up to date", database.name);
    }
    Ok(())
}

/// What `relay healthcheck` needs.
#[derive(Debug, Clone, Args)]
pub struct Probe {
    /// Address that the running relay listens on.
    #[arg(long, env = "HTTP_LISTEN", default_value = "127.0.0.1:8084")]
    pub http_listen: SocketAddr,
    /// Path to ask for.
    #[arg(long, default_value = "/readyz")]
    pub path: String,
}

/// Ends well when a running relay is ready.
///
/// # Errors
/// It is not; the message holds its answer.
pub async fn healthcheck(probe: Probe) -> anyhow::Result<()> {
    health::probe(ProbeConfig { http_listen: probe.http_listen, path: probe.path }).await
}
