//! How late retries of mixed delays come: from the due time to the effect.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::RwLock;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use waybill_testkit::Topics;

use super::{Quantiles, micros};
use crate::chaos::consume::rig::Rig;
use crate::chaos::consume::traffic::{Traffic, produce};
use crate::chaos::consume::world::positions;
use crate::worker::{LOOSE, TOPIC};

/// Delays of the tiers.
pub const TIERS: [Duration; 3] = [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(5)];

/// How long the last retries may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a run showed.
#[derive(Debug)]
pub struct Report {
    /// Due time → effect, per delay of the tier, in the order of [`TIERS`].
    pub tiers: Vec<Quantiles>,
    /// Over all.
    pub all: Quantiles,
}

/// One in ten messages fails once, twice or three times and then is handled. The healthy traffic goes on until the last
/// retry: when most of what is handled fails, the flood breaker opens, and that is another measurement.
///
/// # Errors
/// A part cannot be had, or something stays on its way.
pub async fn run(delayed: usize, time: Duration) -> anyhow::Result<Report> {
    let mut rig = Rig::build(2, &[LOOSE], &TIERS, &["--script", "tiers"]).await?;
    for place in 0..2 {
        rig.start(place, None)?;
    }
    let topics = Arc::new(Topics::existing(&rig.topics.prefix, &rig.topics.bootstrap));
    let traffic = Traffic { seed: 0, messages: delayed * 10, keys: 1_000, time, odd: false, healthy: false };
    let more = Traffic { messages: delayed * 10, healthy: true, ..traffic };
    let quiet = Arc::new(RwLock::new(()));
    tokio::spawn(produce(traffic, Arc::clone(&topics), Arc::clone(&quiet))).await.context("a producer")??;
    let more = AbortOnDropHandle::new(tokio::spawn(produce(more, topics, quiet)));
    let produced = Instant::now();
    while retries_left(&rig).await? > 0 {
        anyhow::ensure!(!more.is_finished(), "{} retries are left", retries_left(&rig).await?);
        anyhow::ensure!(produced.elapsed() < PATIENCE, "{} retries are left", retries_left(&rig).await?);
        sleep(Duration::from_millis(200)).await;
    }
    drop(more);
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

/// Records on retry topics that are not handled yet.
async fn retries_left(rig: &Rig) -> anyhow::Result<i64> {
    let positions = positions(rig, LOOSE).await?;
    Ok(positions.iter().filter(|p| p.topic != TOPIC).map(|p| p.end - p.committed).sum())
}
