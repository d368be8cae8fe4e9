//! Command line of the point service.

use waybill_point::Cli;
use waybill_service::health;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse_arguments(std::env::args()).unwrap_or_else(|error| error.exit()) {
        Cli::Serve(config) => waybill_point::serve(*config).await,
        Cli::Migrate(config) => waybill_point::migrate(config).await,
        Cli::Healthcheck(config) => health::probe(config).await,
    }
}
