//! What a relay costs that has nothing to do.

use std::time::Duration;

use super::{cpu_time, resident_kib};
use crate::System;

/// What a run measured, of one relay with two sources.
#[derive(Debug)]
pub struct Report {
    /// Share of one core, 0 to 1.
    pub core: f64,
    /// Transactions a second in both databases together.
    pub transactions: f64,
    /// Resident memory, MiB.
    pub memory_mib: f64,
}

/// Lets everything be idle for a while.
///
/// # Errors
/// The relay ended.
pub async fn run(time: Duration) -> anyhow::Result<Report> {
    let mut system = System::prepare(&[("RUST_LOG", "warn")]).await;
    system.spawn("relay", None);
    system.ready("relay").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let pid = system.process("relay").id().unwrap_or_default();
    let before = (cpu_time(pid)?, transactions(&system).await?);
    tokio::time::sleep(time).await;
    let after = (cpu_time(pid)?, transactions(&system).await?);
    // Our own look is one transaction in each database.
    Ok(Report {
        core: (after.0 - before.0).as_secs_f64() / time.as_secs_f64(),
        transactions: (after.1 - before.1 - 2).max(0) as f64 / time.as_secs_f64(),
        memory_mib: resident_kib(pid)? as f64 / 1024.0,
    })
}

async fn transactions(system: &System) -> anyhow::Result<i64> {
    let mut sum = 0;
    for pool in [&system.orders.pool, &system.points.pool] {
        // Statistics of other sessions reach the shared memory about a second after the fact.
        sum += sqlx::query_scalar::<_, i64>(
            "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()",
        )
        .fetch_one(pool)
        .await?;
    }
    Ok(sum)
}
