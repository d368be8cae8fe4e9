//! The order service: takes orders over HTTP, and writes each together with its event.
//!
//! **Promises.** An order, its lines, the answer for its idempotency key and its event in the outbox are committed
//! by one statement, or none of them is. One key never makes two orders, whatever crashes, times out or is
//! repeated. A customer sees only their own orders.
//!
//! **Does not promise.** Nothing here speaks to Kafka: the relay publishes what the outbox holds. Prices are those of the
//! moment of placing; stock is not kept.

mod api;
mod app;
mod config;
mod door;
pub mod idempotency;
pub mod metrics;
pub mod openapi;
pub mod orders;
pub mod paging;
pub mod problems;
pub mod products;

use sqlx::migrate::Migrator;
use waybill_service::{crash, postgres, shutdown, telemetry};

pub use app::{App, BuildError};
pub use config::Config;

/// Name of the service in telemetry and in PostgreSQL's list of sessions.
pub const NAME: &str = "waybill-order";

/// Every migration of the service's database, in the order to be applied.
#[must_use]
pub fn migrators() -> Vec<Migrator> {
    vec![waybill_outbox::migrator(), sqlx::migrate!("./migrations")]
}

/// Runs the API until SIGTERM or SIGINT.
///
/// # Errors
/// A setting that cannot be used, an unreachable or unmigrated database, a listener that fails.
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
