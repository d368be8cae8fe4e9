//! Command line of the order service.

use clap::Parser;
use waybill_service::{health, postgres};

/// Takes orders over HTTP and writes each together with its event.
#[derive(Debug, Parser)]
#[command(name = "waybill-order", version, about)]
enum Command {
    /// Run the HTTP API.
    Serve(Box<waybill_order::Config>),
    /// Apply pending migrations and exit.
    Migrate(postgres::Config),
    /// Exit 0 when a running instance is ready; for container probes.
    Healthcheck(health::ProbeConfig),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Serve(config) => waybill_order::serve(*config).await,
        Command::Migrate(config) => waybill_order::migrate(config).await,
        Command::Healthcheck(config) => health::probe(config).await,
    }
}
