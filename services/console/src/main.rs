//! Command line of the console.

use std::process::ExitCode;

use waybill_console::Cli;
use waybill_service::health;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse_arguments(std::env::args()).unwrap_or_else(|error| error.exit()) {
        Cli::Serve(config) => waybill_console::serve(*config).await?,
        Cli::Migrate(config) => waybill_console::migrate(config).await?,
        Cli::Healthcheck(config) => health::probe(config).await?,
        Cli::Operate(operate) => return Ok(operate.run().await),
    }
    Ok(ExitCode::SUCCESS)
}
