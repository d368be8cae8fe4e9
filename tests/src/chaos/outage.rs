//! What handlers depend on is away for a while: everything fails transiently. The breaker bounds what leaves its place.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::RwLock;
use tokio::time::sleep;
use waybill_consumer::BreakerSettings;
use waybill_testkit::Topics;

use super::consume::judge::judge;
use super::consume::rig::{Rig, TIERS};
use super::consume::traffic::{Traffic, produce};
use super::consume::world::{Group, World, id, left};
use super::consume::{Counts, Finding};

/// How long a line may take to run again.
const PATIENCE: Duration = Duration::from_secs(120);
/// Healthy traffic before and after.
const AROUND: Duration = Duration::from_secs(10);

/// How large a run is.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Length of the outage.
    pub away: Duration,
    /// Messages a second.
    pub rate: usize,
    /// Worker processes.
    pub workers: usize,
    /// Groups to run, of [`GROUPS`](super::consume::GROUPS).
    pub groups: Vec<&'static str>,
    /// Names the run.
    pub seed: u64,
}

/// What left its place at the end of the outage.
#[derive(Debug)]
pub struct Left {
    /// Group.
    pub group: String,
    /// Messages on retry topics.
    pub retried: usize,
    /// Records on retry topics.
    pub records: usize,
    /// Messages that were dead-lettered.
    pub dead: usize,
    /// Messages in the park.
    pub parked: usize,
    /// Messages that were produced and not handled.
    pub waiting: usize,
}

/// What a run showed.
#[derive(Debug)]
pub struct Report {
    /// Per group, at the end of the outage.
    pub left: Vec<Left>,
    /// The most messages per group that all processes together may let go.
    pub bound: usize,
    /// From the end of the outage until no breaker of any process was open.
    pub closed: Duration,
    /// From the end of the outage until nothing was on its way, with the traffic going on.
    pub drained: Duration,
    /// Where the messages were at the end.
    pub counts: Vec<Counts>,
    /// What must not be.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether no group let go more than the bound, and nothing is lost.
    pub fn is_well(&self) -> bool {
        self.findings.is_empty() && self.left.iter().all(|left| left.retried.max(left.dead) <= self.bound)
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for Left { group, retried, records, dead, parked, waiting } in &self.left {
            writeln!(
                f,
                "{group}: at the end of the outage {retried} messages on retry topics ({records} records), {dead} dead (bound {}), {parked} parked, {waiting} held in place",
                self.bound
            )?;
        }
        for counts in &self.counts {
            writeln!(f, "{counts}")?;
        }
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        write!(
            f,
            "all closed {:.1} s after the end of the outage, drained after {:.1} s; {} findings",
            self.closed.as_secs_f64(),
            self.drained.as_secs_f64(),
            self.findings.len()
        )
    }
}

/// Runs a plan.
///
/// # Errors
/// A part cannot be had, or something stays on its way.
pub async fn run(plan: Plan) -> anyhow::Result<Report> {
    let mut rig = Rig::build(plan.workers, &plan.groups, &TIERS, &["--script", "outage"]).await?;
    let report = measure(&mut rig, plan).await;
    if !report.as_ref().is_ok_and(Report::is_well) {
        let logs = rig.keep_logs();
        rig.say(&format!("logs: {logs}"));
    }
    report
}

async fn measure(rig: &mut Rig, plan: Plan) -> anyhow::Result<Report> {
    for place in 0..plan.workers {
        rig.start(place, None)?;
    }
    let time = AROUND + plan.away + AROUND;
    let messages = plan.rate * usize::try_from(time.as_secs())?;
    let traffic = Traffic { seed: plan.seed, messages, keys: 1_000, time, odd: false, healthy: false };
    let topics = Arc::new(Topics::existing(&rig.topics.prefix, &rig.topics.bootstrap));
    let producing = tokio::spawn(produce(traffic, topics, Arc::new(RwLock::new(()))));
    sleep(AROUND).await;
    handling(rig).await?;
    let pool = rig.database.pool.clone();
    sqlx::query("insert into outage default values").execute(&pool).await?;
    rig.say("everything fails");
    sleep(plan.away).await;
    let world = World::read(rig).await?;
    let left_then = world.groups.iter().map(|group| left_of(group, world.source.len())).collect();
    sqlx::query("delete from outage").execute(&pool).await?;
    rig.say("nothing fails any more");
    let started = Instant::now();
    closed(rig).await?;
    let closed = started.elapsed();
    producing.await.context("the producers panicked")??;
    let drained = drained(rig, started).await?;
    let verdict = judge(&World::read(rig).await?, true);
    Ok(Report {
        left: left_then,
        bound: BreakerSettings::default().bound(plan.away) * plan.workers,
        closed,
        drained,
        counts: verdict.counts,
        findings: verdict.findings,
    })
}

/// Waits until every group has handled a message.
async fn handling(rig: &Rig) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let groups: i64 = sqlx::query_scalar("select count(distinct consumer_group) from effect")
            .fetch_one(&rig.database.pool)
            .await?;
        if usize::try_from(groups)? == rig.groups.len() {
            return Ok(());
        }
        anyhow::ensure!(started.elapsed() < PATIENCE, "{groups} groups handle anything");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until no breaker of a worker is open, by what they log.
async fn closed(rig: &Rig) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let logs =
            rig.workers.iter().filter_map(|worker| worker.process.as_ref()).map(|process| process.log());
        let logs: Vec<_> = logs.collect();
        let count = |phase: &str| logs.iter().map(|log| log.matches(phase).count()).sum::<usize>();
        let (opened, closed) =
            (count(r#"breaker changed phase="open""#), count(r#"breaker changed phase="closed""#));
        anyhow::ensure!(opened > 0, "no breaker has opened");
        if opened == closed {
            return Ok(());
        }
        anyhow::ensure!(started.elapsed() < PATIENCE, "{opened} breakers opened, {closed} closed again");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn drained(rig: &Rig, started: Instant) -> anyhow::Result<Duration> {
    loop {
        let left = left(rig).await?;
        if left.is_empty() {
            return Ok(started.elapsed());
        }
        anyhow::ensure!(started.elapsed() < Duration::from_secs(300), "nothing moves any more: {left:#?}");
        sleep(Duration::from_millis(200)).await;
    }
}

fn left_of(group: &Group, produced: usize) -> Left {
    let different = |records: &[_]| records.iter().map(id).collect::<HashSet<_>>().len();
    Left {
        group: group.name.clone(),
        retried: different(&group.retries),
        records: group.retries.len(),
        dead: different(&group.dead_letters),
        parked: group.parked.len(),
        waiting: produced.saturating_sub(group.inbox.len()),
    }
}
