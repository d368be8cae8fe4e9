//! Command line of the notification service.

use waybill_notification::Cli;
use waybill_service::health;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse_arguments(std::env::args()).unwrap_or_else(|error| error.exit()) {
        Cli::Serve(config) => waybill_notification::serve(*config).await,
        Cli::Migrate(config) => waybill_notification::migrate(config).await,
        Cli::Healthcheck(config) => health::probe(config).await,
    }
}
