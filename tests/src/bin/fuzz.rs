//! Noise into what reads what others wrote, for as long as wanted. Called by `cargo dev fuzz`.

use std::time::Duration;

use clap::Parser;
use waybill_tests::chaos::fresh_seed;
use waybill_tests::fuzz::{Api, MOST_GROWTH_KIB, Target, run};

#[derive(Parser)]
#[command(about)]
struct Arguments {
    /// What noise goes into.
    #[arg(value_enum)]
    target: Target,
    /// For how long.
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    time: Duration,
    /// Seed of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Arguments { target, time, seed } = Arguments::parse();
    let seed = seed.unwrap_or_else(fresh_seed);
    println!("{target:?}, seed {seed}");
    let api = match target {
        Target::Bodies | Target::Cursors => Some(Api::start().await?),
        _ => None,
    };
    let report = run(target, time, seed, api.as_ref()).await?;
    println!(
        "{target:?}: {} inputs in {time:?}, {} taken as good, grown by {} KiB, no panic",
        report.inputs, report.taken, report.grown_kib
    );
    anyhow::ensure!(report.grown_kib < MOST_GROWTH_KIB, "memory grows");
    Ok(())
}
