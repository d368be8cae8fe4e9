//! Broker, database, topics and worker processes of a run.

use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::Signal;
use tokio::time::sleep;
use uuid::Uuid;
use waybill_consumer::{dead_letter_topic, replay_topic, retry_topic};
use waybill_event::{Event, ReplayOutcome};
use waybill_testkit::process::Process;
use waybill_testkit::{Broker, Database, Topics};

use crate::chaos::signal;
use crate::worker::{APPLICATION, LOOSE, STRICT, TABLES, TOPIC};

/// Partitions of the source, and so of every topic of the groups.
pub(super) const PARTITIONS: i32 = 6;
/// Every group that a worker can run.
pub const GROUPS: [&str; 2] = [LOOSE, STRICT];
/// Delays of the retries.
pub(super) const TIERS: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(500), Duration::from_secs(1)];

/// Everything that a run has of its own.
pub(super) struct Rig {
    pub(super) database: Database,
    pub(super) topics: Topics,
    pub(super) broker: Broker,
    pub(super) workers: Vec<Worker>,
    pub(super) groups: Vec<&'static str>,
    /// Folder of the logs; kept when a run fails.
    pub(super) folder: Option<tempfile::TempDir>,
    arguments: Vec<String>,
    started: Instant,
}

/// A place for a process.
#[derive(Default)]
pub(super) struct Worker {
    pub(super) process: Option<Process>,
    /// Stopped until then.
    pub(super) frozen: Option<Instant>,
}

/// The topics that a group reads beside the source.
pub(super) fn side_topics(group: &str) -> Vec<String> {
    let retries = TIERS.iter().map(|tier| retry_topic("", TOPIC, group, *tier));
    let retries = retries.filter(|_| group == LOOSE);
    retries.chain([replay_topic("", TOPIC, group)]).collect()
}

impl Rig {
    /// Everything but the workers. `arguments` are given to each of them.
    pub(super) async fn build(
        workers: usize,
        groups: &[&'static str],
        arguments: &[String],
    ) -> anyhow::Result<Self> {
        let broker = Broker::start().await;
        let topics = Topics::none_on(&broker.bootstrap());
        let dead = groups.iter().map(|group| dead_letter_topic("", TOPIC, group));
        let sides = groups.iter().flat_map(|group| side_topics(group));
        for name in [TOPIC.to_owned(), ReplayOutcome::TOPIC.to_owned()].into_iter().chain(dead).chain(sides) {
            topics.add(&name, PARTITIONS, &[]).await;
        }
        let database = Database::create(&[waybill_consumer::migrator()]).await;
        sqlx::raw_sql(TABLES).execute(&database.pool).await?;
        let mut all: Vec<String> = Vec::new();
        let given = [
            ("--database", &database.url),
            ("--bootstrap", &topics.bootstrap),
            ("--prefix", &topics.prefix),
            ("--groups", &groups.join(",")),
        ];
        for (name, value) in given {
            all.extend([name.to_owned(), value.clone()]);
        }
        all.extend(arguments.iter().cloned());
        let workers = (0..workers).map(|_| Worker::default()).collect();
        let (folder, started) = (Some(tempfile::tempdir()?), Instant::now());
        Ok(Self {
            database,
            topics,
            broker,
            workers,
            groups: groups.to_vec(),
            folder,
            arguments: all,
            started,
        })
    }

    /// Tells a fault, with its time.
    pub(super) fn say(&self, what: &str) {
        eprintln!("{:6.1} s: {what}", self.started.elapsed().as_secs_f64());
    }

    /// Starts a worker in a place; `crash_at` arms a crash point.
    pub(super) fn start(&mut self, place: usize, crash_at: Option<&str>) -> anyhow::Result<()> {
        let folder = self.folder.as_ref().context("the folder of the logs")?;
        let log = folder.path().join(format!("worker-{place}-{}.log", Uuid::now_v7()));
        let mut arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        arguments.extend(crash_at.into_iter().flat_map(|point| ["--crash-at", point]));
        let level = std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".to_owned());
        let settings = [("RUST_LOG".to_owned(), level), ("RUST_BACKTRACE".to_owned(), "1".to_owned())];
        let process = Process::start("worker", &arguments, &settings, &log);
        self.workers[place] = Worker { process: Some(process), frozen: None };
        Ok(())
    }

    /// SIGKILL, also to a stopped one. False: nothing ran there.
    pub(super) async fn kill(&mut self, place: usize) -> bool {
        let worker = &mut self.workers[place];
        worker.frozen = None;
        match worker.process.take() {
            Some(mut process) => {
                process.kill().await;
                true
            }
            None => false,
        }
    }

    /// SIGTERM, and waits for the end.
    pub(super) async fn leave(&mut self, place: usize) -> anyhow::Result<()> {
        let worker = &mut self.workers[place];
        let Some(mut process) = worker.process.take() else { return Ok(()) };
        if worker.frozen.take().is_some() {
            signal(&process, Signal::CONT);
        }
        signal(&process, Signal::TERM);
        let code = process.ended().await;
        // A crash point may come first.
        anyhow::ensure!(code != Some(101), "a worker panicked while it left:\n{}", process.log());
        Ok(())
    }

    pub(super) fn freeze(&mut self, place: usize, time: Duration) -> bool {
        let worker = &mut self.workers[place];
        let stopped = worker.process.as_ref().is_some_and(|process| signal(process, Signal::STOP));
        worker.frozen = stopped.then(|| Instant::now() + time);
        stopped
    }

    /// Lets those go on whose time is over, or all.
    pub(super) fn thaw(&mut self, all: bool) -> usize {
        let mut thawed = 0;
        for worker in &mut self.workers {
            if let (Some(process), Some(until)) = (&worker.process, worker.frozen)
                && (all || until <= Instant::now())
            {
                signal(process, Signal::CONT);
                worker.frozen = None;
                thawed += 1;
            }
        }
        thawed
    }

    /// Starts what has ended at a crash point or by a fatal error of its client; how many.
    pub(super) fn revive(&mut self, report_only: bool) -> anyhow::Result<usize> {
        let mut ended = 0;
        for place in 0..self.workers.len() {
            let dead = match &mut self.workers[place].process {
                Some(process) => !process.is_running(),
                None => false,
            };
            if dead {
                ended += 1;
                let log = self.workers[place].process.take().map(|process| process.log()).unwrap_or_default();
                let last: Vec<_> = log.lines().rev().take(3).collect();
                self.say(&format!("worker {place} has ended: {last:?}"));
                if !report_only {
                    self.start(place, None)?;
                }
            }
        }
        Ok(ended)
    }

    /// Waits until the server has ended, rolled back or committed what the workers left behind: killed ones leave
    /// no session, stopped ones no statement.
    pub(super) async fn calm(&self, killed: bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let busy: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity
                 where datname = current_database() and application_name = $1 and ($2 or state = 'active')",
            )
            .bind(APPLICATION)
            .bind(killed)
            .fetch_one(&self.database.pool)
            .await?;
            if busy == 0 {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "{busy} sessions of workers do not end");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends random sessions of the workers, or all.
    pub(super) async fn cut(&self, share: f64) -> anyhow::Result<i64> {
        let ended = sqlx::query_scalar(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity
             where datname = current_database() and application_name = $1 and random() < $2",
        )
        .bind(APPLICATION)
        .bind(share)
        .fetch_one(&self.database.pool)
        .await?;
        Ok(ended)
    }

    /// Keeps the logs and says where.
    pub(super) fn keep_logs(&mut self) -> String {
        self.folder.take().map_or_else(String::new, |folder| folder.keep().display().to_string())
    }
}
