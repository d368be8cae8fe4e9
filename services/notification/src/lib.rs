//! The notification service: consumes `orders.v1` and `points.v1`, and tells customers.
//!
//! **Promises.** One notification per event, whatever is delivered again: its row and the task that sends it commit with
//! the event's inbox row. Within an order nothing is sent before what was recorded earlier and is still to be sent, with
//! any number of instances. Everything recorded is sent at least once, under an id that stays the same, or shows as
//! `failed` until an operator decides.
//!
//! **Does not promise.** Not exactly once: a crash between sending and marking sends again. No order between the two
//! topics: "points earned" may come before "placed", when `orders.v1` lags behind.

mod app;
mod cli;
mod config;
pub mod notices;

use sqlx::migrate::Migrator;
use waybill_service::{crash, postgres, shutdown, telemetry};

pub use app::{App, BuildError};
pub use cli::Cli;
pub use config::Config;

/// Name of the service in telemetry and in PostgreSQL's list of sessions.
pub const NAME: &str = "waybill-notification";
/// The consumer group, without the installation's prefix.
pub const GROUP: &str = "notification";

/// Every migration of the service's database, in the order to be applied. The outbox's for the leases of jobs: the
/// service publishes nothing yet.
#[must_use]
pub fn migrators() -> Vec<Migrator> {
    let shared = [waybill_outbox::migrator(), waybill_consumer::migrator(), waybill_task::migrator()];
    shared.into_iter().chain([sqlx::migrate!("./migrations")]).collect()
}

/// Runs consumers, worker and API until SIGTERM or SIGINT.
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
