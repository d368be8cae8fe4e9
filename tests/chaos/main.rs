//! Random faults, in their short form. The long form is `cargo dev chaos`.

use std::time::Duration;

use waybill_tests::chaos::{consume, fresh_seed, orders, relay};

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_lose_nothing_and_keep_every_key_in_order() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let plan = relay::Plan { rows: 20_000, keys: 500, writing: Duration::from_secs(15), seed };
    let report = relay::run(plan).await.expect("runs to its end");
    println!("{report}");
    assert_eq!((report.missing, report.inversions), (0, 0), "seed {seed}: {report}");
    assert!(report.kills > 0 && report.stops > 0 && report.restarts == 1, "seed {seed}: {report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_neither_lost_nor_doubled() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let report =
        orders::run(orders::Plan { orders: 2_000, clients: 8, seed }).await.expect("runs to its end");
    println!("{report}");
    assert!(report.broken.is_empty(), "seed {seed}: {:#?}", report.broken);
    assert!(report.kills > 0 && report.restarts == 1, "seed {seed}: {report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_lose_nothing_double_nothing_and_keep_keys_in_order() {
    // The same seed each time, so that a change is to blame for what is new; others are had by WAYBILL_SEED.
    let seed = std::env::var("WAYBILL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("seed {seed}");
    let (time, groups) = (Duration::from_secs(25), consume::GROUPS.to_vec());
    let plan = consume::Plan { messages: 3_000, keys: 1_000, time, workers: 3, groups, seed };
    let report = consume::run(plan).await.unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
    println!("{report}");
    assert!(report.findings.is_empty(), "WAYBILL_SEED={seed}: {report}");
    for counts in &report.counts {
        assert!(
            counts.done > 2_500 && counts.replayed > 0 && counts.dead > 0,
            "WAYBILL_SEED={seed}: {report}"
        );
    }
    assert!(report.done.is_whole(), "WAYBILL_SEED={seed}: {report}");
}
