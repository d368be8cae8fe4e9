//! How late retries of mixed delays come: from the due time to the effect.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::RwLock;
use tokio::time::sleep;
use waybill_testkit::Topics;

use super::{Quantiles, micros};
use crate::chaos::consume::rig::Rig;
use crate::chaos::consume::traffic::{Traffic, produce};
use crate::chaos::consume::world::left;
use crate::worker::LOOSE;

/// Delays of the tiers.
pub const TIERS: [Duration; 3] = [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(5)];

/// What a run showed.
#[derive(Debug)]
pub struct Report {
    /// Due time → effect, per delay of the tier, in the order of [`TIERS`].
    pub tiers: Vec<Quantiles>,
    /// Over all.
    pub all: Quantiles,
}

/// One in five messages fails once, twice or three times and then is handled.
///
/// # Errors
/// A part cannot be had, or something stays on its way.
pub async fn run(delayed: usize, time: Duration) -> anyhow::Result<Report> {
    let mut rig = Rig::build(2, &[LOOSE], &TIERS, &["--script", "tiers"]).await?;
    for place in 0..2 {
        rig.start(place, None)?;
    }
    let traffic = Traffic { seed: 0, messages: delayed * 5, keys: 1_000, time, odd: false, healthy: false };
    let topics = Arc::new(Topics::existing(&rig.topics.prefix, &rig.topics.bootstrap));
    tokio::spawn(produce(traffic, topics, Arc::new(RwLock::new(()))))
        .await
        .context("a producer panicked")??;
    let produced = Instant::now();
    while !left(&rig).await?.is_empty() {
        anyhow::ensure!(produced.elapsed() < Duration::from_secs(120), "{:#?}", left(&rig).await?);
        sleep(Duration::from_millis(200)).await;
    }
    let late = "select (extract(epoch from handled_at - due_at) * 1000000)::bigint from effect where due_at is not null";
    let mut tiers = Vec::new();
    for attempt in 2..=4_i32 {
        let statement = format!("{late} and attempt = $1");
        let values = sqlx::query_scalar(sqlx::AssertSqlSafe(statement))
            .bind(attempt)
            .fetch_all(&rig.database.pool)
            .await?;
        tiers.push(Quantiles::of(micros(values)));
    }
    let all = sqlx::query_scalar(late).fetch_all(&rig.database.pool).await?;
    Ok(Report { tiers, all: Quantiles::of(micros(all)) })
}
