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
use crate::worker::{APPLICATION, LAST_WORDS, LOOSE, STRICT, TABLES, TOPIC};

/// Partitions of the source, and so of every topic of the groups.
pub(crate) const PARTITIONS: i32 = 6;
/// Every group that a worker can run.
pub const GROUPS: [&str; 2] = [LOOSE, STRICT];
/// Delays of the retries of a run that is to end soon.
pub(crate) const TIERS: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(500), Duration::from_secs(1)];

/// Everything that a run has of its own.
pub(crate) struct Rig {
    pub(crate) database: Database,
    pub(crate) topics: Topics,
    pub(crate) broker: Broker,
    pub(crate) workers: Vec<Worker>,
    pub(crate) groups: Vec<&'static str>,
    tiers: Vec<Duration>,
    /// Folder of the logs; kept when a run fails.
    pub(crate) folder: Option<tempfile::TempDir>,
    arguments: Vec<String>,
    started: Instant,
}

/// A place for a process.
#[derive(Default)]
pub(crate) struct Worker {
    pub(crate) process: Option<Process>,
    /// Stopped until then.
    pub(crate) frozen: Option<Instant>,
}

impl Rig {
    /// Everything but the workers. `arguments` are given to each of them.
    pub(crate) async fn build(
        workers: usize,
        groups: &[&'static str],
        tiers: &[Duration],
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        let broker = Broker::start().await;
        let topics = Topics::none_on(&broker.bootstrap());
        let database = Database::create(&[waybill_consumer::migrator()]).await;
        sqlx::raw_sql(TABLES).execute(&database.pool).await?;
        let delays: Vec<String> = tiers.iter().map(|tier| format!("{}ms", tier.as_millis())).collect();
        let given = [
            ("--database", database.url.clone()),
            ("--bootstrap", topics.bootstrap.clone()),
            ("--prefix", topics.prefix.clone()),
            ("--groups", groups.join(",")),
            ("--tiers", delays.join(",")),
        ];
        let given = given.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        let rig = Self {
            arguments: given.chain(arguments.iter().map(|argument| (*argument).to_owned())).collect(),
            workers: (0..workers).map(|_| Worker::default()).collect(),
            groups: groups.to_vec(),
            tiers: tiers.to_vec(),
            folder: Some(tempfile::tempdir()?),
            started: Instant::now(),
            database,
            topics,
            broker,
        };
        let dead = groups.iter().map(|group| dead_letter_topic("", TOPIC, group));
        let sides = groups.iter().flat_map(|group| rig.side_topics(group));
        for name in [TOPIC.to_owned(), ReplayOutcome::TOPIC.to_owned()].into_iter().chain(dead).chain(sides) {
            rig.topics.add(&name, PARTITIONS, &[]).await;
        }
        Ok(rig)
    }

    /// The topics that a group reads beside the source.
    pub(crate) fn side_topics(&self, group: &str) -> Vec<String> {
        let retries = self.tiers.iter().map(|tier| retry_topic("", TOPIC, group, *tier));
        let retries = retries.filter(|_| group == LOOSE);
        retries.chain([replay_topic("", TOPIC, group)]).collect()
    }

    /// Tells a fault, with its time.
    pub(crate) fn say(&self, what: &str) {
        eprintln!("{:6.1} s: {what}", self.started.elapsed().as_secs_f64());
    }

    /// Starts a worker in a place; `crash_at` arms a crash point.
    pub(crate) fn start(&mut self, place: usize, crash_at: Option<&str>) -> anyhow::Result<()> {
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
    pub(crate) async fn kill(&mut self, place: usize) -> bool {
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
    pub(crate) async fn leave(&mut self, place: usize) -> anyhow::Result<()> {
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

    pub(crate) fn freeze(&mut self, place: usize, time: Duration) -> bool {
        let worker = &mut self.workers[place];
        let stopped = worker.process.as_ref().is_some_and(|process| signal(process, Signal::STOP));
        worker.frozen = stopped.then(|| Instant::now() + time);
        stopped
    }

    /// Lets those go on whose time is over, or all.
    pub(crate) fn thaw(&mut self, all: bool) -> usize {
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

    /// Starts again what has ended: at a crash point, by a message that ends its process, or by a fatal error of its
    /// client. Returns the last words of those that gave no such reason.
    pub(crate) fn revive(&mut self) -> anyhow::Result<Vec<String>> {
        let mut unexpected = Vec::new();
        for place in 0..self.workers.len() {
            let Some(process) = self.workers[place].process.take_if(|process| !process.is_running()) else {
                continue;
            };
            let log = process.log();
            let last: Vec<_> = log.lines().rev().filter(|line| !line.is_empty()).take(10).collect();
            let own = last.iter().find(|line| line.starts_with(LAST_WORDS)).copied();
            let words = own.or(last.first().copied()).unwrap_or("not a word").to_owned();
            self.say(&format!("worker {place} has ended: {words}"));
            if own.is_none() {
                unexpected.push(words);
            }
            self.start(place, None)?;
        }
        Ok(unexpected)
    }

    /// Waits until the server has ended, rolled back or committed what the workers left behind: killed ones leave
    /// no session, stopped ones no statement.
    pub(crate) async fn calm(&self, killed: bool) -> anyhow::Result<()> {
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
    pub(crate) async fn cut(&self, share: f64) -> anyhow::Result<i64> {
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
    pub(crate) fn keep_logs(&mut self) -> String {
        self.folder.take().map_or_else(String::new, |folder| folder.keep().display().to_string())
    }
}
