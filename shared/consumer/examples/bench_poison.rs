//! What failing messages cost: throughput with 1 % of them against none, in one run, by a batch handler that gives
//! outcomes, one that fails the whole call, and handlers of single messages: one that refuses before it writes, and one
//! that finds the fault after it has written. Rounds are pairs, so that a machine that
//! grows busy slows both sides, and their spread is printed: on a shared machine one pair says little. Run with
//! `--release`; needs `DATABASE_URL` and `KAFKA_BOOTSTRAP`. A kind of handler as argument measures that one only.

mod load;

use load::{Blunt, GROUP, Late, Ledger};
use waybill_consumer::{Subscribed, Subscription};
use waybill_event::{Event, OrderEvent};

/// Messages a second.
async fn rate(kind: &str, partitions: i32, count: usize, poison: usize) -> f64 {
    let (database, topics, ledger) =
        (load::database().await, load::filled(partitions, count, poison).await, Ledger::default());
    let subscription = Subscription::new(OrderEvent::TOPIC, GROUP);
    let subscribed: Subscribed = match kind {
        "outcomes" => subscription.batch_handler(ledger.clone()),
        "late" => subscription.handler(Late(ledger.clone())),
        "whole call" => subscription.batch_handler(Blunt(ledger.clone())),
        _ => subscription.handler(ledger.clone()),
    };
    let good = count - count.checked_div(poison).unwrap_or(0);
    let seconds = ledger.timed(&database.pool, load::settings(&topics), subscribed, good).await;
    count as f64 / seconds
}

/// The value at a share of the sorted list.
fn at(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

#[tokio::main]
async fn main() {
    println!("messages/s, medians; the ratio is the median of the rounds' own ratios, with quartiles");
    println!("handler      partitions rounds  no poison 1 % poison   ratio");
    // A promise hangs on the first two kinds.
    let only = std::env::args().nth(1);
    let kinds =
        [("outcomes", 80_000, 11), ("single", 20_000, 11), ("late", 20_000, 11), ("whole call", 40_000, 3)];
    for (kind, count, rounds) in kinds {
        if only.as_deref().is_some_and(|only| only != kind) {
            continue;
        }
        for partitions in [1, 6] {
            let (mut clean, mut poisoned, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for round in 0..rounds {
                // Which side goes first alternates too.
                let (first, second) = if round % 2 == 0 { (0, 100) } else { (100, 0) };
                let one = rate(kind, partitions, count, first).await;
                let other = rate(kind, partitions, count, second).await;
                let (without, with) = if round % 2 == 0 { (one, other) } else { (other, one) };
                clean.push(without);
                poisoned.push(with);
                ratios.push(with / without);
            }
            let (without, with, ratio) = (at(&clean, 0.5), at(&poisoned, 0.5), at(&ratios, 0.5));
            let (low, high) = (at(&ratios, 0.25), at(&ratios, 0.75));
            println!(
                "{kind:<12} {partitions:>10} {rounds:>6} {without:>10.0} {with:>10.0} {ratio:>7.2} ({low:.2} to {high:.2})"
            );
        }
    }
}
