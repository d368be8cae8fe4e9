//! Random faults against the real binaries, as large as wanted. Called by `cargo dev chaos`.

use std::time::Duration;

use clap::Parser;
use waybill_tests::chaos::{self, consume, orders, outage, relay};

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
    /// Consumers that are killed, stopped past their session and restarted, with handlers that fail in every way and two
    /// operators who replay; at quiet points every message must be in exactly one place, and keys in order.
    Consume {
        /// Messages to produce.
        #[arg(long, default_value_t = 60_000)]
        messages: usize,
        /// Keys they belong to.
        #[arg(long, default_value_t = 1_000)]
        keys: usize,
        /// Time of producing, in minutes.
        #[arg(long, default_value_t = 5.0)]
        minutes: f64,
        /// Worker processes.
        #[arg(long, default_value_t = 3)]
        workers: usize,
        /// Only this group: `loose` with retry topics, or `strict` in the order of keys.
        #[arg(long, value_parser = consume::GROUPS)]
        group: Option<String>,
        /// Seed of an earlier run.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Everything fails transiently for a while: what the flood breaker lets go, and that nothing is lost.
    Breaker {
        /// Length of the outage, in minutes.
        #[arg(long, default_value_t = 2.0)]
        minutes: f64,
        /// Messages a second.
        #[arg(long, default_value_t = 100)]
        rate: usize,
        /// Worker processes.
        #[arg(long, default_value_t = 2)]
        workers: usize,
        /// Only this group.
        #[arg(long, value_parser = consume::GROUPS)]
        group: Option<String>,
    },
}

fn groups(only: Option<&str>) -> Vec<&'static str> {
    consume::GROUPS.into_iter().filter(|name| only.is_none_or(|only| only == *name)).collect()
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
        Command::Consume { messages, keys, minutes, workers, group, seed } => {
            let seed = seed.unwrap_or_else(chaos::fresh_seed);
            println!("seed {seed}");
            let groups =
                consume::GROUPS.into_iter().filter(|name| group.as_deref().is_none_or(|g| g == *name));
            let (time, groups) = (Duration::from_secs_f64(minutes * 60.0), groups.collect());
            let report = consume::run(consume::Plan { messages, keys, time, workers, groups, seed }).await?;
            println!("{report}");
            anyhow::ensure!(report.findings.is_empty(), "seed {seed}: {} findings", report.findings.len());
        }
        Command::Breaker { minutes, rate, workers, group } => {
            let (away, groups) = (Duration::from_secs_f64(minutes * 60.0), groups(group.as_deref()));
            let report = outage::run(outage::Plan { away, rate, workers, groups, seed: 0 }).await?;
            println!("{report}");
            anyhow::ensure!(report.is_well(), "more left its place than may, or something is lost");
        }
    }
    Ok(())
}
