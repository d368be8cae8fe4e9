//! The consumer runtime under random faults: each message of each group in exactly one place at every quiet point, and
//! keys in order where that is promised.

mod faults;
pub(crate) mod judge;
mod operators;
mod order;
pub(crate) mod rig;
#[cfg(test)]
mod tests;
pub(crate) mod traffic;
pub(crate) mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::seq::IndexedRandom;
use tokio::sync::RwLock;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_consumer::dead_letter_topic;

use super::{between, dice};
use crate::worker::TOPIC;
pub use faults::Done;
use faults::Fault;
pub use judge::{Counts, Finding};
use operators::Operator;
pub use rig::GROUPS;
use rig::{Rig, TIERS};
use traffic::Traffic;
use world::World;

/// Without any progress for so long, something is stuck: twice the lease of a parked dead letter.
const STANDSTILL: Duration = Duration::from_secs(60);
/// Longest draining.
const PATIENCE: Duration = Duration::from_secs(600);
/// Draining that takes longer is worth a look at the logs.
const SLOW: Duration = Duration::from_secs(60);

/// How large a run is.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Messages to produce.
    pub messages: usize,
    /// Keys they belong to.
    pub keys: usize,
    /// Time of producing, during which there are faults.
    pub time: Duration,
    /// Places for workers.
    pub workers: usize,
    /// Groups to run, of [`GROUPS`].
    pub groups: Vec<&'static str>,
    /// Names the run.
    pub seed: u64,
}

/// What a run showed.
#[derive(Debug, Default)]
pub struct Report {
    /// Faults.
    pub done: Done,
    /// Replays that the operators sent.
    pub replays: usize,
    /// Where the messages were at the end.
    pub counts: Vec<Counts>,
    /// From the end of the faults until nothing was on its way, both times.
    pub draining: Duration,
    /// Longest time of it without any progress. Up to the lease of a parked dead letter, 30 s, when its publisher died.
    pub standstill: Duration,
    /// Last words of workers that ended by themselves: what only a restart of the process mends.
    pub ended: Vec<String>,
    /// What must not be.
    pub findings: Vec<Finding>,
    /// Where the logs are kept when something was found.
    pub logs: String,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{}; {} replays sent; drained in {:.1} s, at most {:.1} s without progress",
            self.done,
            self.replays,
            self.draining.as_secs_f64(),
            self.standstill.as_secs_f64()
        )?;
        for counts in &self.counts {
            writeln!(f, "{counts}")?;
        }
        for words in &self.ended {
            writeln!(f, "a worker ended: {words}")?;
        }
        for finding in self.findings.iter().take(20) {
            writeln!(f, "{finding}")?;
        }
        if !self.logs.is_empty() {
            writeln!(f, "logs: {}", self.logs)?;
        }
        write!(f, "{} findings", self.findings.len())
    }
}

/// Runs a plan.
///
/// # Errors
/// A part cannot be had, or something stays on its way.
pub async fn run(plan: Plan) -> anyhow::Result<Report> {
    let mut rig = Rig::build(plan.workers, &plan.groups, &TIERS, &["--seed", &plan.seed.to_string()]).await?;
    let mut report = Report::default();
    let result = torment(&mut rig, &plan, &mut report).await;
    if result.is_err() || !report.findings.is_empty() || report.draining > SLOW {
        report.logs = rig.keep_logs();
        rig.say(&format!("logs: {}", report.logs));
    }
    result.map(|()| report)
}

async fn torment(rig: &mut Rig, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let topics = Arc::new(waybill_testkit::Topics::existing(&rig.topics.prefix, &rig.topics.bootstrap));
    let (quiet, desk, stop) =
        (Arc::new(RwLock::new(())), Arc::new(RwLock::new(())), CancellationToken::new());
    for place in 0..plan.workers {
        rig.start(place, None)?;
    }
    let Plan { messages, keys, time, seed, .. } = *plan;
    let traffic = Traffic { seed, messages, keys, time, odd: true, healthy: false };
    let producing = tokio::spawn(traffic::produce(traffic, Arc::clone(&topics), Arc::clone(&quiet)));
    let operators: Vec<_> = ["first", "second"]
        .into_iter()
        .zip(1_u64..)
        .map(|(name, number)| {
            let operator = Operator {
                name,
                topics: Arc::clone(&topics),
                pool: rig.database.pool.clone(),
                groups: plan.groups.clone(),
                dice: dice(plan.seed ^ number << 32),
                desk: Arc::clone(&desk),
            };
            tokio::spawn(operator.work(stop.clone()))
        })
        .collect();
    hurt(rig, plan, &producing, (&quiet, &desk), report).await?;
    producing.await.context("the producers panicked")??;
    stop.cancel();
    for operator in operators {
        report.replays += operator.await.context("an operator panicked")??;
    }
    rig.thaw(true);
    // Those that still have a crash point before them go; all places are taken.
    for place in 0..rig.workers.len() {
        rig.kill(place).await;
        rig.start(place, None)?;
    }
    settle(rig, report).await?;
    report.replays += replay_all(rig, plan).await?;
    settle(rig, report).await?;
    let verdict = judge::judge(&World::read(rig).await?, true);
    (report.counts, report.done.looks) = (verdict.counts, report.done.looks + 1);
    report.findings.extend(verdict.findings);
    Ok(())
}

/// One fault after the other while the producers produce.
async fn hurt(
    rig: &mut Rig,
    plan: &Plan,
    producing: &JoinHandle<anyhow::Result<()>>,
    (quiet, desk): (&Arc<RwLock<()>>, &Arc<RwLock<()>>),
    report: &mut Report,
) -> anyhow::Result<()> {
    let (mut dice, started) = (dice(plan.seed), Instant::now());
    while !producing.is_finished() || !report.done.is_whole() {
        sleep(between(&mut dice, 300, 2_500)).await;
        rig.thaw(false);
        report.ended.extend(rig.revive()?);
        let done = &mut report.done;
        match done.next(&mut dice, started.elapsed() > plan.time / 2) {
            Fault::Kill => {
                rig.replace(&mut dice, false).await?;
                done.kills += 1;
            }
            Fault::CrashPoint => {
                rig.replace(&mut dice, true).await?;
                done.crashes += 1;
            }
            Fault::Freeze => done.stops += usize::from(rig.stop(&mut dice)),
            Fault::Leave => {
                rig.leave_or_join(&mut dice).await?;
                done.moves += 1;
            }
            Fault::Cut => {
                let ended = rig.cut(*[0.2, 0.5, 1.0].choose(&mut dice).unwrap_or(&1.0)).await?;
                rig.say(&format!("{ended} database sessions ended"));
                done.sessions += usize::try_from(ended)?;
            }
            Fault::Restart => {
                // Operators look and go away; producers keep producing.
                let _nobody = desk.write().await;
                rig.restart_broker(&mut dice).await?;
                done.restarts += 1;
            }
            Fault::Quiet => {
                let (_nothing, _nobody) = (quiet.write().await, desk.write().await);
                let verdict = rig.look(&mut dice).await?;
                report.done.looks += 1;
                report.findings.extend(verdict.findings);
                anyhow::ensure!(report.findings.len() < 100, "too much is broken: {report}");
            }
        }
    }
    Ok(())
}

/// No faults any more: waits until nothing is on its way.
async fn settle(rig: &mut Rig, report: &mut Report) -> anyhow::Result<()> {
    let (started, mut shown) = (Instant::now(), Instant::now());
    let (mut before, mut moved) = (Vec::new(), Instant::now());
    loop {
        let left = world::left(rig).await?;
        if left.is_empty() {
            break;
        }
        if shown.elapsed() > Duration::from_secs(5) {
            rig.say(&format!("left: {left:?}"));
            shown = Instant::now();
        }
        anyhow::ensure!(moved.elapsed() < STANDSTILL, "nothing moves any more: {left:#?}");
        anyhow::ensure!(started.elapsed() < PATIENCE, "this takes for ever: {left:#?}");
        report.standstill = report.standstill.max(moved.elapsed());
        if left != before {
            (before, moved) = (left, Instant::now());
        }
        report.ended.extend(rig.revive()?);
        sleep(Duration::from_millis(200)).await;
    }
    report.draining += started.elapsed();
    Ok(())
}

/// At the end both operators replay the same dead letters at the same time, most of them repaired.
async fn replay_all(rig: &Rig, plan: &Plan) -> anyhow::Result<usize> {
    let producer = rig.topics.producer();
    let (mut sent, runs) = (0, [("first", Uuid::now_v7()), ("second", Uuid::now_v7())]);
    for group in &plan.groups {
        let dead = rig.topics.read(&dead_letter_topic("", TOPIC, group)).await;
        let chosen: Vec<_> =
            dead.iter().filter(|record| !world::id(record).as_u128().is_multiple_of(4)).collect();
        let ids: Vec<_> = chosen.iter().map(|record| world::id(record)).collect();
        operators::repair(&rig.database.pool, &ids).await?;
        let sends = runs.map(|(name, run)| {
            let sends =
                chosen.iter().map(|dead| operators::replay(&producer, &rig.topics, group, dead, run, name));
            futures::future::try_join_all(sends.collect::<Vec<_>>())
        });
        for ended in futures::future::try_join_all(sends).await? {
            sent += ended.len();
        }
    }
    rig.say(&format!("{sent} replays by both operators at once"));
    Ok(sent)
}
