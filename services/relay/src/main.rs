//! Command line of the relay.

use clap::{Parser, Subcommand};
use waybill_relay::{Config, Probe, config::Sources, dead, republish, status, topics};
use waybill_service::shutdown;

/// Publishes transactional outboxes to Kafka.
#[derive(Parser)]
#[command(name = "relay", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Relay until SIGTERM.
    Serve(Box<Config>),
    /// Apply the outbox's migrations to every source.
    Migrate(Sources),
    /// Ask a running relay whether it is ready.
    Healthcheck(Probe),
    /// Show what lies in the outboxes.
    Status(status::Config),
    /// Rows that Kafka refused for good: show them, retry them, give them up.
    Dead(dead::Config),
    /// Send rows once more that were sent before, with the same ids.
    Republish(Box<republish::Config>),
    /// Topics as code.
    Topics(topics::Config),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Serve(config) => waybill_relay::serve(*config, shutdown::on_signal()?).await,
        Command::Migrate(sources) => waybill_relay::migrate(sources).await,
        Command::Healthcheck(probe) => waybill_relay::healthcheck(probe).await,
        Command::Status(config) => status::run(config).await,
        Command::Dead(config) => dead::run(config).await,
        Command::Republish(config) => republish::run(*config, shutdown::on_signal()?).await,
        Command::Topics(config) => topics::run(config).await,
    }
}
