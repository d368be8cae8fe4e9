//! Measures the real binaries that lie beside it. Called by `cargo dev bench`, in a release build.

use std::time::Duration;

use clap::Parser;
use waybill_tests::bench::{idle, latency, lateness, outage, parked};

#[derive(Parser)]
#[command(about)]
enum Command {
    /// From commit to broker, ledger and customer at a steady rate.
    Latency {
        /// Orders a second.
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2000))]
        rate: u32,
        /// For how long.
        #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
        time: Duration,
    },
    /// What an idle relay costs.
    Idle {
        /// For how long.
        #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
        time: Duration,
    },
    /// The broker is away while orders are placed.
    Outage {
        /// For how long.
        #[arg(long, default_value = "120s", value_parser = humantime::parse_duration)]
        time: Duration,
        /// Orders a second.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rate: u32,
    },
    /// How late retries come that are due after 200 ms, 1 s and 5 s.
    Lateness {
        /// Messages that are delayed; there are nine times as many others.
        #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        delayed: u32,
        /// Time of producing.
        #[arg(long, default_value = "40s", value_parser = humantime::parse_duration)]
        time: Duration,
    },
    /// What parked keys cost the keys that never fail.
    Parked {
        /// Messages a second.
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2000))]
        rate: u32,
        /// Length of each of the two phases.
        #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
        time: Duration,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Latency { rate, time } => {
            let report = latency::run(rate, time).await?;
            println!("{rate} orders a second for {time:?}");
            println!("POST /v1/orders            {}", report.request);
            println!("commit → record received   {}", report.received);
            println!("commit → marked as sent    {}", report.marked);
            println!("commit → ledger            {}", report.ledger);
            println!("commit → customer told     {}", report.told);
        }
        Command::Idle { time } => {
            let report = idle::run(time).await?;
            println!(
                "idle relay with two sources: {:.2} % of a core, {:.1} transactions a second, {:.0} MiB",
                report.core * 100.0,
                report.transactions,
                report.memory_mib
            );
        }
        Command::Outage { time, rate } => {
            let report = outage::run(time, rate).await?;
            let [before, most, after] = report.memory_mib;
            println!("broker away for {time:?}: {} orders placed, {} rows dead", report.orders, report.dead);
            println!("relay's memory: {before:.0} MiB before, at most {most:.0} during, {after:.0} after");
            println!(
                "age of the oldest unsent row: metric {:.1} s, true {:.1} s",
                report.age_s, report.true_age_s
            );
            println!("drained {:.1} s after the broker's return", report.drained.as_secs_f64());
            anyhow::ensure!(report.dead == 0 && report.broken.is_empty(), "{:?}", report.broken);
        }
        Command::Lateness { delayed, time } => {
            let report = lateness::run(delayed as usize, time).await?;
            for (tier, late) in lateness::TIERS.iter().zip(&report.tiers) {
                println!("due after {tier:>5?} → effect   {late}");
            }
            println!("all                       {}", report.all);
        }
        Command::Parked { rate, time } => {
            let report = parked::run(rate as usize, time).await?;
            println!("{rate} messages a second, {time:?} each; keys that never fail, produced → effect");
            println!("nothing parked            {}", report.alone);
            println!("{:>4} keys, {:>5} parked    {}", report.keys, report.messages, report.beside);
        }
    }
    Ok(())
}
