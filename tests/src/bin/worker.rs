//! A consumer that fails by a script. Started, killed and stopped by `chaos consume` and `bench lateness`.

use clap::Parser;
use tracing_subscriber::EnvFilter;
use waybill_tests::worker::{self, Options};

#[derive(Parser)]
#[command(about)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).init();
    worker::run(Arguments::parse().options).await
}
