//! The faults of a run, one after the other by the dice; stopped workers stay stopped meanwhile.

use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rustix::process::Signal;
use tokio::time::sleep;

use super::judge::{Verdict, judge};
use super::rig::Rig;
use super::world::{World, readable};
use crate::chaos::{between, signal};
use crate::worker::SESSION_TIMEOUT;

/// Where a worker kills itself: between the database and the broker, and between two of their statements.
pub(crate) const CRASH_POINTS: [&str; 7] = [
    "consumer.before_commit",
    "consumer.after_commit",
    "consumer.after_redirect",
    "consumer.before_outcome",
    "park.after_ack",
    "park.before_commit",
    "park.after_commit",
];

/// What was done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Done {
    /// Workers killed.
    pub kills: usize,
    /// Workers started with a crash point.
    pub crashes: usize,
    /// Workers stopped past their session.
    pub stops: usize,
    /// Workers that left, or came in addition.
    pub moves: usize,
    /// Sessions of the database ended.
    pub sessions: usize,
    /// Restarts of the broker.
    pub restarts: usize,
    /// Looks at everything while nothing ran.
    pub looks: usize,
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} kills, {} crash points, {} stops past the session, {} joined or left, {} database sessions ended, {} broker restarts, {} quiet points",
            self.kills, self.crashes, self.stops, self.moves, self.sessions, self.restarts, self.looks
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill,
    CrashPoint,
    Freeze,
    Leave,
    Cut,
    Restart,
    Quiet,
}

impl Done {
    /// A kind that has not been yet comes first once half of the time is over, so that no run goes without.
    pub(crate) fn next(&self, dice: &mut StdRng, late: bool) -> Fault {
        let rolled = match dice.random_range(0..100) {
            0..24 => Fault::Kill,
            24..44 => Fault::CrashPoint,
            44..58 => Fault::Freeze,
            58..70 => Fault::Leave,
            70..86 => Fault::Cut,
            86..91 => Fault::Restart,
            _ => Fault::Quiet,
        };
        let missing = [
            (self.stops, Fault::Freeze),
            (self.restarts, Fault::Restart),
            (self.looks, Fault::Quiet),
            (self.kills, Fault::Kill),
            (self.sessions, Fault::Cut),
        ];
        let missing = missing.into_iter().find(|(count, _)| late && *count == 0);
        missing.map_or(rolled, |(_, fault)| fault)
    }

    /// Whether each has been.
    pub const fn is_whole(&self) -> bool {
        self.stops > 0 && self.restarts > 0 && self.looks > 0 && self.kills > 0 && self.sessions > 0
    }
}

impl Rig {
    /// Puts a worker into an empty place, or into one whose worker is killed for it.
    pub(crate) async fn replace(&mut self, dice: &mut StdRng, crash: bool) -> anyhow::Result<()> {
        let place = dice.random_range(0..self.workers.len());
        let pause = between(dice, 0, 1_000);
        let point = CRASH_POINTS.choose(dice).map(|name| format!("{name}@{}", dice.random_range(1..30)));
        let point = point.filter(|_| crash);
        let ran = self.kill(place).await;
        self.say(&format!(
            "worker {place} {}; {}",
            if ran { "killed" } else { "comes" },
            point.as_deref().unwrap_or("")
        ));
        sleep(pause).await;
        self.start(place, point.as_deref())
    }

    pub(crate) async fn leave_or_join(&mut self, dice: &mut StdRng) -> anyhow::Result<()> {
        let place = dice.random_range(0..self.workers.len());
        let running = self.workers.iter().filter(|worker| worker.process.is_some()).count();
        if self.workers[place].process.is_none() {
            self.say(&format!("worker {place} joins"));
            return self.start(place, None);
        }
        if running > 1 {
            self.say(&format!("worker {place} leaves"));
            self.leave(place).await?;
        }
        Ok(())
    }

    pub(crate) fn stop(&mut self, dice: &mut StdRng) -> bool {
        let place = dice.random_range(0..self.workers.len());
        let time = SESSION_TIMEOUT + between(dice, 500, 10_000);
        if self.workers[place].frozen.is_some() || !self.freeze(place, time) {
            return false;
        }
        self.say(&format!("worker {place} stopped for {:.1} s", time.as_secs_f64()));
        true
    }

    pub(crate) async fn restart_broker(&mut self, dice: &mut StdRng) -> anyhow::Result<()> {
        let away = between(dice, 200, 4_000);
        self.say(&format!("broker away for {:.1} s", away.as_secs_f64()));
        self.broker.kill();
        sleep(away).await;
        self.broker.resume().await;
        readable(self).await
    }

    /// Kills or stops all workers, and looks at everything. Nobody else may be at work.
    pub(crate) async fn look(&mut self, dice: &mut StdRng) -> anyhow::Result<Verdict> {
        let kill = dice.random_bool(0.5);
        self.say(if kill { "quiet: all killed" } else { "quiet: all stopped" });
        let running: Vec<usize> =
            (0..self.workers.len()).filter(|place| self.workers[*place].process.is_some()).collect();
        for place in &running {
            if kill {
                self.kill(*place).await;
            } else if let Some(process) = &self.workers[*place].process {
                signal(process, Signal::STOP);
            }
        }
        self.calm(kill).await?;
        // What a killed client has sent reaches the broker's log a moment later.
        sleep(Duration::from_millis(300)).await;
        let verdict = judge(&World::read(self).await?, false);
        for place in &running {
            if kill {
                self.start(*place, None)?;
            } else if let Some(process) =
                self.workers[*place].process.as_ref().filter(|_| self.workers[*place].frozen.is_none())
            {
                signal(process, Signal::CONT);
            }
        }
        for counts in &verdict.counts {
            self.say(&format!("quiet: {counts}"));
        }
        Ok(verdict)
    }
}
