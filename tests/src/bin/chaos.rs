//! Random faults against the real binaries, as large as wanted. Called by `cargo dev chaos`.

use std::time::Duration;

use clap::Parser;
use waybill_tests::chaos::{self, orders, relay};

#[derive(Parser)]
#[command(about)]
enum Command {
    /// Two relays on one outbox, killed, stopped past their leases and restarted; the broker restarted once.
    Relay {
        /// Rows of the outbox.
        #[arg(long, default_value_t = 200_000)]
        rows: usize,
        /// Keys they belong to.
        #[arg(long, default_value_t = 2_000)]
        keys: usize,
        /// Least time of writing.
        #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
        writing: Duration,
        /// Seed of an earlier run.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Orders through everything while services are killed; the broker restarted once.
    Orders {
        /// Orders to place.
        #[arg(long, default_value_t = 50_000)]
        orders: usize,
        /// Clients that place them at the same time.
        #[arg(long, default_value_t = 16)]
        clients: usize,
        /// Seed of an earlier run.
        #[arg(long)]
        seed: Option<u64>,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Relay { rows, keys, writing, seed } => {
            let seed = seed.unwrap_or_else(chaos::fresh_seed);
            println!("seed {seed}");
            let report = relay::run(relay::Plan { rows, keys, writing, seed }).await?;
            println!("{report}");
            anyhow::ensure!(
                report.missing == 0 && report.inversions == 0,
                "rows are missing or out of order"
            );
        }
        Command::Orders { orders, clients, seed } => {
            let seed = seed.unwrap_or_else(chaos::fresh_seed);
            println!("seed {seed}");
            let report = orders::run(orders::Plan { orders, clients, seed }).await?;
            println!("{report}");
            anyhow::ensure!(report.broken.is_empty(), "{:#?}", report.broken);
        }
    }
    Ok(())
}
