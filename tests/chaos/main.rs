//! Random faults, in their short form. The long form is `cargo dev chaos`.

use std::time::Duration;

use waybill_tests::chaos::{fresh_seed, orders, relay};

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
