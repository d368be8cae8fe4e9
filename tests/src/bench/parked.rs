//! What parked keys cost the others: latency of keys that never fail, first alone, then beside keys that wait.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, Utc};
use tokio::sync::RwLock;
use tokio::time::sleep;
use uuid::Uuid;
use waybill_testkit::{Topics, eventually};

use super::{Quantiles, micros};
use crate::chaos::consume::rig::Rig;
use crate::chaos::consume::traffic::{Traffic, produce};
use crate::worker::STRICT;
use crate::worker::script::is_sick;

/// Long, so that keys stay parked.
const TIERS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];
/// At the beginning, not measured: groups form, caches fill.
const WARM: Duration = Duration::from_secs(5);

/// What a run showed.
#[derive(Debug)]
pub struct Report {
    /// Produced → effect, with nothing parked.
    pub alone: Quantiles,
    /// The same keys, while others are parked.
    pub beside: Quantiles,
    /// Keys parked at the end.
    pub keys: i64,
    /// Messages parked at the end.
    pub messages: i64,
}

/// Two phases of the same length and rate; in the second, one key in ten fails.
///
/// # Errors
/// A part cannot be had.
pub async fn run(rate: usize, time: Duration) -> anyhow::Result<Report> {
    let mut rig = Rig::build(2, &[STRICT], &TIERS, &["--script", "parked"]).await?;
    for place in 0..2 {
        rig.start(place, None)?;
    }
    phase(&rig, rate, WARM, true).await?;
    let alone = phase(&rig, rate, time, true).await?;
    // The park fills before it is measured.
    phase(&rig, rate, WARM, false).await?;
    let beside = phase(&rig, rate, time, false).await?;
    let pool = &rig.database.pool;
    let count = |table| sqlx::query_scalar(table).fetch_one(pool);
    Ok(Report {
        alone,
        beside,
        keys: count("select count(*) from messaging.parked_key").await?,
        messages: count("select count(*) from messaging.parked_message").await?,
    })
}

async fn phase(rig: &Rig, rate: usize, time: Duration, healthy: bool) -> anyhow::Result<Quantiles> {
    let pool = &rig.database.pool;
    let begin: DateTime<Utc> = sqlx::query_scalar("select clock_timestamp()").fetch_one(pool).await?;
    let messages = (rate as f64 * time.as_secs_f64()) as usize;
    // Versions begin anew in each phase; nobody looks at them.
    let traffic = Traffic { seed: 0, messages, keys: 1_000, time, odd: false, healthy };
    let topics = Arc::new(Topics::existing(&rig.topics.prefix, &rig.topics.bootstrap));
    tokio::spawn(produce(traffic, topics, Arc::new(RwLock::new(()))))
        .await
        .context("a producer panicked")??;
    let least = if healthy { messages / 2 * 2 } else { messages * 8 / 10 };
    let rows = async || -> Result<Vec<(String, i64)>, sqlx::Error> {
        sqlx::query_as(
            "select key, (extract(epoch from handled_at - made_at) * 1000000)::bigint from effect
             where made_at >= $1",
        )
        .bind(begin)
        .fetch_all(pool)
        .await
    };
    let rows = eventually(async || match rows().await {
        Ok(rows) if rows.len() >= least => Ok(rows),
        Ok(rows) => Err(format!("{} of {least}", rows.len())),
        Err(error) => Err(error.to_string()),
    })
    .await;
    sleep(Duration::from_millis(500)).await;
    let well = |key: &str| Uuid::parse_str(key).is_ok_and(|key| !is_sick(key));
    let values = rows.into_iter().filter(|(key, _)| well(key)).map(|(_, latency)| latency);
    Ok(Quantiles::of(micros(values.collect())))
}
