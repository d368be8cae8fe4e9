//! The console: operators find, understand, replay and archive dead letters.
//!
//! **Promises.** Every record of every dead-letter topic is in the index once, whatever is in it and however often it is
//! delivered. A plan says before anything is sent what will be sent and what not, and why; what dies later never joins
//! it. A replay goes to the replay topic of the one group that failed, with key, value and the headers of the original;
//! it counts as sent once Kafka has acknowledged it, and as resolved once the consumer has said so. A run survives the
//! end of any console process. Two operators never hold the same message at once. Every act is in an audit to which
//! rows are only added.
//!
//! **Does not promise.** Exactly one record a message on a replay topic: a process that stood still for longer than its
//! lease while a record was on its way may send it a second time. It carries the same ids, and the consumer's inbox
//! takes it once. The dead-letter record itself is never changed or deleted.

mod api;
mod app;
pub mod archive;
pub mod audit;
pub mod cli;
mod config;
pub mod index;
pub mod letters;
pub mod metrics;
mod names;
pub mod openapi;
pub mod plans;
mod problems;
pub mod replays;
pub mod services;
mod state;

use sqlx::migrate::Migrator;
use waybill_service::{crash, postgres, shutdown, telemetry};

pub use app::{App, BuildError};
pub use cli::Cli;
pub use config::{Config, ServiceAddress, Settings};
pub use names::Names;
pub use state::State;

/// Name of the service in telemetry and in PostgreSQL's list of sessions.
pub const NAME: &str = "waybill-console";
/// The consumer group of the index, without the installation's prefix.
pub const GROUP: &str = "console";

/// Every migration of the console's database, in the order to be applied. The outbox's for the leases of jobs.
#[must_use]
pub fn migrators() -> Vec<Migrator> {
    vec![waybill_outbox::migrator(), sqlx::migrate!("./migrations")]
}

/// Runs index, replays and API until SIGTERM or SIGINT.
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
