//! What failing messages cost: throughput with 1 % of them against none, in one run, by a batch handler that gives
//! outcomes, one that fails the whole call, and a handler of single messages. Rounds alternate, so that a machine that
//! grows busy slows both sides. Run with `--release`; needs `DATABASE_URL` and `KAFKA_BOOTSTRAP`.

mod load;

use load::{Blunt, GROUP, Ledger};
use waybill_consumer::{Subscribed, Subscription};
use waybill_event::{Event, OrderEvent};

const ROUNDS: usize = 3;

/// Messages a second.
async fn rate(kind: &str, partitions: i32, count: usize, poison: usize) -> f64 {
    let (database, topics, ledger) =
        (load::database().await, load::filled(partitions, count, poison).await, Ledger::default());
    let subscription = Subscription::new(OrderEvent::TOPIC, GROUP);
    let subscribed: Subscribed = match kind {
        "outcomes" => subscription.batch_handler(ledger.clone()),
        "whole call" => subscription.batch_handler(Blunt(ledger.clone())),
        _ => subscription.handler(ledger.clone()),
    };
    let good = count - count.checked_div(poison).unwrap_or(0);
    let seconds = ledger.timed(&database.pool, load::settings(&topics), subscribed, good).await;
    count as f64 / seconds
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[tokio::main]
async fn main() {
    println!("median of {ROUNDS} alternating rounds, messages/s");
    println!(
        "{:<12} {:>10} {:>10} {:>10} {:>7}",
        "handler", "partitions", "no poison", "1 % poison", "ratio"
    );
    for (kind, count) in [("outcomes", 40_000), ("whole call", 40_000), ("single", 10_000)] {
        for partitions in [1, 6] {
            let (mut clean, mut poisoned) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                clean.push(rate(kind, partitions, count, 0).await);
                poisoned.push(rate(kind, partitions, count, 100).await);
            }
            let (clean, poisoned) = (median(clean), median(poisoned));
            println!("{kind:<12} {partitions:>10} {clean:>10.0} {poisoned:>10.0} {:>7.2}", poisoned / clean);
        }
    }
}
