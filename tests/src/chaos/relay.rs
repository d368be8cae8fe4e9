//! Two relays on one outbox: killed, stopped past their leases, restarted at random; the broker restarted once.
//! A reader of the raw topic then looks for every id, and at the order of first occurrences of each key.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::Rng;
use rustix::process::Signal;
use sqlx::PgPool;
use tokio::time::sleep;
use uuid::Uuid;
use waybill_testkit::process::{Process, free_address};
use waybill_testkit::topics::Record;
use waybill_testkit::{Broker, Database, Topics, eventually};

use super::{between, dice, signal};

const TOPIC: &str = "orders.v1";
/// Short, so that a stop of a few seconds is longer than a lease.
const TTL: Duration = Duration::from_secs(4);

/// How large a run is.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Rows of the outbox.
    pub rows: usize,
    /// Keys they belong to.
    pub keys: usize,
    /// Least time that writing takes, so that there is time for faults.
    pub writing: Duration,
    /// Names the run.
    pub seed: u64,
}

/// What a run showed.
#[derive(Debug, Default)]
pub struct Report {
    /// Records on the topic.
    pub records: usize,
    /// Records whose id was there before.
    pub duplicates: usize,
    /// Ids of the outbox that are not on the topic.
    pub missing: usize,
    /// First occurrences that came after a later one of their key.
    pub inversions: usize,
    /// Relays killed.
    pub kills: usize,
    /// Relays stopped past their lease.
    pub stops: usize,
    /// Restarts of the broker.
    pub restarts: usize,
    /// From the first row to the last mark.
    pub took: Duration,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} records, {} duplicates, {} missing, {} inversions; {} kills, {} stops past the lease, {} broker restarts; {:.1} s",
            self.records,
            self.duplicates,
            self.missing,
            self.inversions,
            self.kills,
            self.stops,
            self.restarts,
            self.took.as_secs_f64()
        )
    }
}

struct Rig {
    database: Database,
    topics: Topics,
    broker: Broker,
    folder: tempfile::TempDir,
    relays: Vec<Process>,
}

/// Runs a plan.
///
/// # Errors
/// A part cannot be had, or rows stay unsent.
pub async fn run(plan: Plan) -> anyhow::Result<Report> {
    let mut rig = Rig::build().await?;
    let mut report = Report::default();
    let started = Instant::now();
    let writers = tokio::spawn(write(rig.database.pool.clone(), rig.topics.name(TOPIC), plan));
    rig.torment(plan, &writers, &mut report).await?;
    writers.await.context("a writer failed")??;
    rig.drained().await?;
    report.took = started.elapsed();
    let ids: Vec<String> =
        sqlx::query_scalar("select id::text from messaging.outbox").fetch_all(&rig.database.pool).await?;
    judge(&rig.topics.read(TOPIC).await, &ids, &mut report);
    Ok(report)
}

impl Rig {
    async fn build() -> anyhow::Result<Self> {
        let broker = Broker::start().await;
        let topics = Topics::none_on(&broker.bootstrap());
        topics.add(TOPIC, 16, &[]).await;
        let database = Database::create(&[]).await;
        let mut rig = Self { database, topics, broker, folder: tempfile::tempdir()?, relays: Vec::new() };
        let mut migrate = rig.relay("migrate");
        anyhow::ensure!(migrate.ended().await == Some(0), "migrate: {}", migrate.log());
        rig.relays = vec![rig.relay("serve"), rig.relay("serve")];
        Ok(rig)
    }

    fn relay(&self, verb: &str) -> Process {
        let log = self.folder.path().join(format!("{}.log", Uuid::new_v4()));
        let set = |name: &str, value: String| (name.to_owned(), value);
        let settings = [
            set("RELAY_SOURCES", format!("order={}", self.database.url)),
            set("KAFKA_BOOTSTRAP", self.broker.bootstrap()),
            set("HTTP_LISTEN", free_address().to_string()),
            set("METRICS_LISTEN", free_address().to_string()),
            set("RELAY_LEASE_TTL", format!("{}s", TTL.as_secs())),
            set("RELAY_LEASE_RENEW", "600ms".to_owned()),
            set("LOG_FORMAT", "json".to_owned()),
        ];
        let settings = if verb == "migrate" { &settings[..1] } else { &settings[..] };
        Process::start("waybill-relay", &[verb], settings, &log)
    }

    /// One fault after the other while the writers write; the broker goes once, in the middle.
    async fn torment(
        &mut self,
        plan: Plan,
        writers: &tokio::task::JoinHandle<anyhow::Result<()>>,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let mut dice = dice(plan.seed);
        let started = Instant::now();
        while !writers.is_finished() || report.restarts == 0 || report.kills == 0 || report.stops == 0 {
            // Long enough for leases to be taken: a relay that owns nothing cannot be hurt.
            sleep(between(&mut dice, 500, 6_000)).await;
            let chosen = dice.random_range(0..self.relays.len());
            if report.restarts == 0 && started.elapsed() > plan.writing / 2 {
                self.broker.kill();
                sleep(between(&mut dice, 200, 2_000)).await;
                self.broker.resume().await;
                report.restarts += 1;
            } else if dice.random_bool(0.3) {
                anyhow::ensure!(signal(&self.relays[chosen], Signal::STOP), "{}", self.relays[chosen].log());
                sleep(TTL + between(&mut dice, 500, 2_000)).await;
                signal(&self.relays[chosen], Signal::CONT);
                report.stops += 1;
            } else {
                self.relays[chosen].kill().await;
                sleep(between(&mut dice, 0, 1_000)).await;
                self.relays[chosen] = self.relay("serve");
                report.kills += 1;
            }
        }
        Ok(())
    }

    async fn drained(&mut self) -> anyhow::Result<()> {
        for relay in &mut self.relays {
            anyhow::ensure!(relay.is_running(), "a relay ended by itself: {}", relay.log());
        }
        let pool = self.database.pool.clone();
        eventually(async || {
            let (unsent, dead): (i64, i64) = sqlx::query_as(
                "select count(*) filter (where sent_at is null), count(*) filter (where dead_at is not null) from messaging.outbox",
            )
            .fetch_one(&pool)
            .await
            .map_err(|e| e.to_string())?;
            assert_eq!(dead, 0, "an outage must kill nothing");
            if unsent == 0 { Ok(()) } else { Err(format!("{unsent} unsent")) }
        })
        .await;
        Ok(())
    }
}

/// Four writers with keys of their own; the value of a row is its version, so that `seq` order per key is known.
async fn write(pool: PgPool, topic: String, plan: Plan) -> anyhow::Result<()> {
    const WRITERS: usize = 4;
    // Small and often, so that a relay is in the middle of something whenever it is killed.
    const BATCH: usize = 10;
    let batches = (plan.rows / WRITERS / BATCH).max(1);
    let pause = plan.writing / u32::try_from(batches)?;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (pool, topic, mut dice) = (pool.clone(), topic.clone(), dice(plan.seed ^ writer as u64));
        writers.spawn(async move {
            let mut versions = vec![0_i64; (plan.keys / WRITERS).max(1)];
            for _ in 0..batches {
                let due = Instant::now() + pause;
                let (mut keys, mut values) = (Vec::new(), Vec::new());
                for _ in 0..BATCH {
                    let key = dice.random_range(0..versions.len());
                    versions[key] += 1;
                    keys.push(format!("{writer}-{key}"));
                    values.push(versions[key].to_string());
                }
                sqlx::query(
                    "select messaging.append(gen_random_uuid(), 'order', k, 'waybill.order.placed', $3, convert_to(v, 'UTF8'))
                     from unnest($1::text[], $2::text[]) with ordinality as u (k, v, n) order by n",
                )
                .bind(&keys)
                .bind(&values)
                .bind(&topic)
                .execute(&pool)
                .await?;
                tokio::time::sleep_until(due.into()).await;
            }
            Ok::<_, sqlx::Error>(())
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    Ok(())
}

/// Reads the topic as it lies there.
fn judge(records: &[Record], ids: &[String], report: &mut Report) {
    let mut seen = HashSet::new();
    let mut newest: HashMap<String, i64> = HashMap::new();
    for record in records {
        let id = record.header("ce_id").unwrap_or_default();
        if !seen.insert(id.to_owned()) {
            report.duplicates += 1;
            continue;
        }
        let version =
            record.value.as_deref().and_then(|v| std::str::from_utf8(v).ok()?.parse().ok()).unwrap_or(0);
        let newest = newest.entry(record.key_text()).or_default();
        if version <= *newest {
            report.inversions += 1;
        }
        *newest = version;
    }
    report.records = records.len();
    report.missing = ids.iter().filter(|id| !seen.contains(*id)).count();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str, key: &str, version: i64) -> Record {
        Record {
            partition: 0,
            offset: 0,
            timestamp: None,
            key: Some(key.into()),
            value: Some(version.to_string().into_bytes()),
            headers: vec![("ce_id".into(), Some(id.into()))],
        }
    }

    #[test]
    fn the_judge_sees_what_is_missing_doubled_or_inverted() {
        let records = [
            record("a", "k", 1),
            record("c", "k", 3),
            record("b", "k", 2), // after a later one
            record("a", "k", 1), // again
            record("x", "l", 1),
        ];
        let mut report = Report::default();
        judge(&records, &["a", "b", "c", "d", "x"].map(String::from), &mut report);
        assert_eq!((report.records, report.duplicates, report.missing, report.inversions), (5, 1, 1, 1));
    }
}
