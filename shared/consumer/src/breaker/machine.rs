//! The rules of the breaker as a state machine: no waiting, no clock of its own.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use uuid::Uuid;

use super::{BreakerPhase, BreakerSettings, Ruling};

/// Messages whose failed probes are remembered. Each message that is waited for is at the front of a partition, a tier
/// or the park, so there are as many as there are of these; the rest are of partitions that went away.
pub(super) const REMEMBERED: usize = 1_024;

/// A message that failed transiently.
#[derive(Debug, Clone, Copy)]
struct Failing {
    id: Uuid,
    /// At its first attempt.
    first: bool,
}

#[derive(Debug)]
pub(super) struct Machine {
    settings: BreakerSettings,
    phase: BreakerPhase,
    reason: Option<String>,
    since: Instant,
    /// Last outcomes, oldest first: the message that failed transiently, `None` for any other outcome. A message is in
    /// it once, however often it fails: one that is tried again and again says nothing of the others.
    recent: VecDeque<Option<Failing>>,
    /// Messages that failed for good since the last success; a batch that is run again counts its messages once.
    permanent: Vec<Uuid>,
    /// The message that is tried while it is open.
    probing: Option<Uuid>,
    /// Failed probes of this opening, oldest message first.
    probes: VecDeque<(Uuid, u32)>,
    interval: Duration,
    next_probe: Instant,
}

impl Machine {
    pub(super) fn new(settings: BreakerSettings, now: Instant) -> Self {
        let (interval, window) = (settings.probe_min, settings.window);
        Self {
            settings,
            phase: BreakerPhase::Closed,
            reason: None,
            since: now,
            recent: VecDeque::with_capacity(window),
            permanent: Vec::new(),
            probing: None,
            probes: VecDeque::new(),
            interval,
            next_probe: now,
        }
    }

    pub(super) const fn phase(&self) -> BreakerPhase {
        self.phase
    }

    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    pub(super) const fn since(&self) -> Instant {
        self.since
    }

    /// No probe before.
    pub(super) const fn next_probe(&self) -> Instant {
        self.next_probe
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.recent.len() + self.permanent.len() + self.probes.len()
    }

    pub(super) fn succeeded(&mut self, messages: usize, now: Instant) {
        if messages == 0 {
            return;
        }
        self.permanent.clear();
        match self.phase {
            BreakerPhase::Stopped => return,
            BreakerPhase::Open => self.close(now),
            BreakerPhase::Closed => {}
        }
        for _ in 0..messages.min(self.settings.window) {
            self.push(None);
        }
    }

    /// Later attempts are of messages that were chosen by their failing, and say less of the others: where first attempts
    /// do not speak, all of the window must have failed.
    pub(super) fn failed_transiently(&mut self, id: Uuid, first: bool, now: Instant) -> Ruling {
        let phase = self.phase;
        match phase {
            BreakerPhase::Stopped => return Ruling::Hold,
            BreakerPhase::Open if self.was_probe(id) => return self.probe_failed(id, now),
            BreakerPhase::Open => return Ruling::Hold,
            BreakerPhase::Closed => {}
        }
        let first = first || self.recent.iter().flatten().any(|failing| failing.id == id && failing.first);
        self.forget_recent(id);
        self.push(Some(Failing { id, first }));
        let (failed, of) = (self.recent.iter().flatten().count(), self.recent.len());
        let firsts = self.recent.iter().flatten().filter(|failing| failing.first).count();
        let most = firsts >= self.settings.least && failed * 2 > of;
        if !most && failed < self.settings.window {
            return Ruling::Count;
        }
        self.enter(
            BreakerPhase::Open,
            Some(format!("{failed} of the last {of} messages failed transiently")),
            now,
        );
        self.interval = self.settings.probe_min;
        self.space(now);
        Ruling::Hold
    }

    fn probe_failed(&mut self, id: Uuid, now: Instant) -> Ruling {
        self.space(now);
        let failed = self.forget_probes(id) + 1;
        if failed >= self.settings.probes {
            return Ruling::Count;
        }
        self.probes.push_back((id, failed));
        if self.probes.len() > REMEMBERED {
            self.probes.pop_front();
        }
        Ruling::Hold
    }

    pub(super) fn failed_permanently(&mut self, id: Uuid, now: Instant) -> Ruling {
        let phase = self.phase;
        match phase {
            BreakerPhase::Stopped => return Ruling::Hold,
            BreakerPhase::Open if self.was_probe(id) => {
                self.space(now);
                self.forget_probes(id);
            }
            BreakerPhase::Open => {}
            BreakerPhase::Closed => {
                self.forget_recent(id);
                self.push(None);
            }
        }
        if !self.permanent.contains(&id) {
            self.permanent.push(id);
        }
        let failed = self.permanent.len();
        if failed < self.settings.permanent {
            return Ruling::Count;
        }
        self.enter(BreakerPhase::Stopped, Some(format!("{failed} messages in a row failed for good")), now);
        Ruling::Hold
    }

    /// What is tried now; `None` when that has ended without a word.
    pub(super) const fn probe(&mut self, id: Option<Uuid>) {
        self.probing = id;
    }

    /// A probe fails once, however often its failure is told.
    fn was_probe(&mut self, id: Uuid) -> bool {
        self.probing.take_if(|probing| *probing == id).is_some()
    }

    /// Whether it was stopped.
    pub(super) fn resume(&mut self, now: Instant) -> bool {
        let stopped = self.phase == BreakerPhase::Stopped;
        if stopped {
            self.close(now);
        }
        stopped
    }

    /// Begins anew: what failed before says nothing of what comes now.
    fn close(&mut self, now: Instant) {
        self.recent.clear();
        self.permanent.clear();
        self.enter(BreakerPhase::Closed, None, now);
    }

    fn enter(&mut self, phase: BreakerPhase, reason: Option<String>, now: Instant) {
        self.probes.clear();
        self.probing = None;
        (self.phase, self.reason, self.since) = (phase, reason, now);
    }

    /// The next probe is an interval away, the one after it twice as far.
    fn space(&mut self, now: Instant) {
        self.next_probe = now + self.interval;
        self.interval = (self.interval * 2).min(self.settings.probe_max);
    }

    fn forget_recent(&mut self, id: Uuid) {
        self.recent.retain(|failing| failing.is_none_or(|failing| failing.id != id));
    }

    fn push(&mut self, outcome: Option<Failing>) {
        if self.recent.len() == self.settings.window {
            self.recent.pop_front();
        }
        self.recent.push_back(outcome);
    }

    /// How many have failed so far.
    fn forget_probes(&mut self, id: Uuid) -> u32 {
        let at = self.probes.iter().position(|(probed, _)| *probed == id);
        at.and_then(|at| self.probes.remove(at)).map_or(0, |(_, failed)| failed)
    }
}
