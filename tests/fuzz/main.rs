//! Noise, in its short form. The long form is `cargo dev fuzz`.

use std::time::Duration;

use waybill_tests::chaos::fresh_seed;
use waybill_tests::fuzz::{Api, MOST_GROWTH_KIB, Target, run};

const SHORT: Duration = Duration::from_secs(3);

/// One after the other: growth is measured on the whole process.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn endures(target: Target) {
    let _alone = ALONE.lock().await;
    let api = match target {
        Target::Bodies | Target::Cursors => Some(Api::start().await.expect("service")),
        _ => None,
    };
    let seed = fresh_seed();
    let report =
        run(target, SHORT, seed, api.as_ref()).await.unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
    println!("{target:?}, seed {seed}: {report:?}");
    assert!(report.inputs > 100 && report.grown_kib < MOST_GROWTH_KIB, "seed {seed}: {report:?}");
    // Noise that never gets past the first byte shows nothing.
    assert!(report.taken > 0 && report.taken < report.inputs, "seed {seed}: {report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn headers() {
    endures(Target::Headers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames() {
    endures(Target::Frames).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn avro() {
    endures(Target::Avro).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies() {
    endures(Target::Bodies).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors() {
    endures(Target::Cursors).await;
}
