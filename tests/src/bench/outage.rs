//! The broker is away while writers go on.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use waybill_testkit::Broker;

use super::resident_kib;
use crate::{System, invariants};

/// What a run showed.
#[derive(Debug)]
pub struct Report {
    /// Orders placed during the outage.
    pub orders: usize,
    /// Relay's resident memory before, at most during, and after, MiB.
    pub memory_mib: [f64; 3],
    /// Age of the oldest unsent row as the metric said at the end of the outage, seconds.
    pub age_s: f64,
    /// True age then.
    pub true_age_s: f64,
    /// From the broker's return until nothing was unsent.
    pub drained: Duration,
    /// Rows declared dead.
    pub dead: i64,
    /// Broken invariants.
    pub broken: Vec<String>,
}

/// Takes the broker away for `time` while `rate` orders a second are placed.
///
/// # Errors
/// An order is refused, or something never arrives.
pub async fn run(time: Duration, rate: u32) -> anyhow::Result<Report> {
    let mut broker = Broker::start().await;
    let mut system =
        System::start_on(&broker.bootstrap(), &[("RUST_LOG", "warn"), ("RATE_LIMIT", "0")]).await;
    let customer = system.customer();
    customer.place("warm", "TEA-1", 1, "ON_DELIVERY", None).await?;
    system.settled().await;
    let pid = system.process("relay").id().unwrap_or_default();
    let before = resident_kib(pid)?;
    broker.kill();
    let (started, mut orders, mut most) = (Instant::now(), 0_usize, before);
    while started.elapsed() < time {
        let answer = customer.place(&format!("k{orders}"), "TEA-1", 1, "ON_DELIVERY", None).await?;
        anyhow::ensure!(answer.status == 201, "{answer:?}");
        orders += 1;
        most = most.max(resident_kib(pid)?);
        let due = started + Duration::from_secs(1) * u32::try_from(orders)? / rate;
        sleep(due.saturating_duration_since(Instant::now())).await;
    }
    let true_age: f64 = sqlx::query_scalar(
        "select extract(epoch from clock_timestamp() - min(created_at))::float8 from messaging.outbox where sent_at is null",
    )
    .fetch_one(&system.orders.pool)
    .await?;
    let age = age(&system.metrics("relay")).await?;
    broker.resume().await;
    let back = Instant::now();
    loop {
        let unsent: i64 = sqlx::query_scalar("select count(*) from messaging.outbox where sent_at is null")
            .fetch_one(&system.orders.pool)
            .await?;
        if unsent == 0 {
            break;
        }
        anyhow::ensure!(back.elapsed() < time + Duration::from_secs(120), "{unsent} rows are still unsent");
        sleep(Duration::from_millis(50)).await;
    }
    let drained = back.elapsed();
    system.settled().await;
    let dead = sqlx::query_scalar("select count(*) from messaging.outbox where dead_at is not null")
        .fetch_one(&system.orders.pool)
        .await?;
    let findings = invariants::check(&system.pools()).await?;
    let mib = |kib: u64| kib as f64 / 1024.0;
    Ok(Report {
        orders,
        memory_mib: [mib(before), mib(most), mib(resident_kib(pid)?)],
        age_s: age,
        true_age_s: true_age,
        drained,
        dead,
        broken: findings.into_iter().filter(|f| !f.broken.is_empty()).map(|f| f.rule.to_owned()).collect(),
    })
}

/// The largest `waybill_relay_oldest_unsent_age_seconds` over the sources.
async fn age(url: &str) -> anyhow::Result<f64> {
    let text = reqwest::Client::builder().no_proxy().build()?.get(url).send().await?.text().await?;
    let values = text.lines().filter(|line| line.starts_with("waybill_relay_oldest_unsent_age_seconds"));
    let ages = values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(ages.fold(0.0, f64::max))
}
