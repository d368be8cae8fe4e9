//! When a floor is proven. No I/O.
//!
//! Each fetch looks at everything behind its cursor, so that a transaction that commits late is never missed. Behind a
//! long snapshot the start of a bucket fills with index entries of sent rows that cannot be removed; the floor leaves
//! them out. The proof takes two steps:
//! 1. read M, the sequence's last value; *then* take a transaction id X of one's own;
//! 2. later, in one statement: the snapshot's xmin, and the lowest unsent row of each bucket. Once xmin > X, all
//!    who could have drawn a `seq` up to M have ended: every such row that will ever exist is visible.

use std::time::{Duration, Instant};

use super::store::Ceiling;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read the sequence and take an id.
    Ceiling,
    /// Look for the lowest unsent rows.
    Lowest,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Floor {
    interval: Duration,
    next: Instant,
    waiting: Option<Ceiling>,
    highest: i64,
    /// Rows were marked or are passed over now, or floors were given up, since the last ceiling was read.
    stale: bool,
}

impl Floor {
    /// One step each `interval` at most.
    pub(crate) fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, next: now, waiting: None, highest: 0, stale: true }
    }

    /// A floor could be raised: rows were marked, or floors wait for fewer rows than before.
    pub(crate) fn touch(&mut self) {
        self.stale = true;
    }

    /// The step that is due.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Step> {
        if now < self.next {
            return None;
        }
        let step = match (self.waiting, self.stale) {
            (Some(_), _) => Step::Lowest,
            (None, true) => Step::Ceiling,
            (None, false) => return None,
        };
        self.next = now + self.interval;
        self.stale &= step != Step::Ceiling;
        Some(step)
    }

    /// A ceiling was read. `false`: the sequence went back, so that nothing known before holds.
    #[must_use]
    pub(crate) fn read(&mut self, ceiling: Ceiling) -> bool {
        let forward = ceiling.seq >= self.highest;
        self.highest = ceiling.seq;
        self.waiting = Some(ceiling);
        forward
    }

    /// The lowest unsent rows were read in a snapshot with this xmin: the proven ceiling, if it is. `cut`: they were
    /// not found everywhere; the next look goes on at once, under the same ceiling.
    pub(crate) fn prove(&mut self, xmin: i64, cut: bool, now: Instant) -> Option<i64> {
        // Rule: xmin > X. Until then somebody may still commit a row with a seq up to M.
        let ceiling = self.waiting.filter(|ceiling| xmin > ceiling.xid)?;
        if cut {
            self.next = now;
        } else {
            self.waiting = None;
        }
        Some(ceiling.seq)
    }

    /// Floors were given up, or a step failed: all over again.
    pub(crate) fn restart(&mut self) {
        self.waiting = None;
        self.stale = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_is_proven_when_every_transaction_up_to_the_own_id_has_ended() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut floor = Floor::new(second, start);
        assert_eq!(floor.due(start), Some(Step::Ceiling));
        assert!(floor.read(Ceiling { seq: 100, xid: 7 }));
        assert_eq!(floor.due(start), None, "not more often than the interval");
        assert_eq!(floor.due(start + second), Some(Step::Lowest));
        assert_eq!(floor.prove(7, false, start), None, "the own id itself is not below xmin");
        assert_eq!(floor.due(start + 2 * second), Some(Step::Lowest), "asked again");
        assert_eq!(floor.prove(8, true, start), Some(100));
        assert_eq!(floor.due(start), Some(Step::Lowest), "the look was cut short and goes on");
        assert_eq!(floor.prove(8, false, start), Some(100));
        assert_eq!(floor.due(start + 9 * second), None, "nothing was marked since");
        floor.touch();
        assert_eq!(floor.due(start + 9 * second), Some(Step::Ceiling));
        assert!(!floor.read(Ceiling { seq: 99, xid: 9 }), "the sequence went back");
    }
}
