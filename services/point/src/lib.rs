//! The point service: consumes `orders.v1`, keeps the ledger of points, publishes `points.v1`.
//!
//! **Promises.** An order's effect on its customer's points is a function of the order's newest state: an event that
//! is lost, repeated, overtaken or replayed changes nothing about where it ends. An account equals the sum of its
//! entries at every commit. Ledger entry, balance, outbox row and inbox row commit together or not at all.
//!
//! **Does not promise.** Nothing here publishes to Kafka: the relay does. It does not judge whether an order should
//! earn: base and rate come in the event.

mod app;
mod cli;
mod config;
pub mod points;

use sqlx::migrate::Migrator;
use waybill_service::{crash, postgres, shutdown, telemetry};

pub use app::{App, BuildError};
pub use cli::Cli;
pub use config::Config;

/// Name of the service in telemetry and in PostgreSQL's list of sessions.
pub const NAME: &str = "waybill-point";
/// The consumer group, without the installation's prefix.
pub const GROUP: &str = "point";

/// Every migration of the service's database, in the order to be applied.
#[must_use]
pub fn migrators() -> Vec<Migrator> {
    vec![waybill_outbox::migrator(), waybill_consumer::migrator(), sqlx::migrate!("./migrations")]
}

/// Runs consumer and API until SIGTERM or SIGINT.
///
/// # Errors
/// A setting that cannot be used, an unreachable or unmigrated database, a part that fails.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let telemetry = telemetry::init(NAME, &config.telemetry)?;
    crash::arm()?;
    let outcome = async {
        let shutdown = shutdown::on_signal()?;
        App::build(config).await?.run(shutdown).await
    }
    .await;
    telemetry.shutdown().await;
    outcome
}

/// Applies pending migrations.
///
/// # Errors
/// An unreachable database, or a migration that fails.
pub async fn migrate(config: postgres::Config) -> anyhow::Result<()> {
    postgres::migrate(&config, NAME, migrators()).await?;
    Ok(())
}
