//! Raising the floors, and looking below them.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::super::floor::Step;
use super::super::store::{self, Ceiling, Lowest, Still};
use super::{Event, Pump};

/// The full scan looks at one bucket in so many at a time.
const PARTS: i16 = 8;

impl Pump {
    /// Gives up all floors after a new connection: the server may have been another one, or have lost marks.
    pub(super) fn check_connections(&mut self) {
        let connections = self.store.connections();
        if std::mem::replace(&mut self.connections, connections) != connections {
            self.forget_floors();
        }
    }

    /// Every bucket is read from its very start.
    pub(super) fn forget_floors(&mut self) {
        self.cursors.forget_all();
        self.floor.restart();
    }

    /// What fetches and floors pass over.
    pub(super) fn still(&self) -> Still {
        Still { paused: self.pauses.topics(), standing: self.standing.iter().cloned().collect() }
    }

    pub(super) fn raise_floors(&mut self, now: Instant) {
        if self.running.floor || self.leases.len() == 0 {
            return;
        }
        let Some(step) = self.floor.due(now) else { return };
        self.running.floor = true;
        let (store, forgotten) = (self.store.clone(), self.cursors.forgotten());
        match step {
            Step::Ceiling => {
                self.tasks.spawn(async move { Event::Ceiling { forgotten, result: store.ceiling().await } });
            }
            Step::Lowest => {
                let floors = self.cursors.floors(self.leases.serving(now));
                let still = self.still();
                self.tasks.spawn(async move {
                    Event::Lowest { forgotten, result: store.lowest(&floors, &still).await }
                });
            }
        }
    }

    pub(super) fn on_ceiling(&mut self, forgotten: u64, result: Result<Ceiling, store::Error>) {
        self.running.floor = false;
        self.note("floor", result.as_ref().err());
        match result {
            Ok(ceiling) if forgotten == self.cursors.forgotten() => {
                if !self.floor.read(ceiling) {
                    tracing::warn!(
                        source = self.ce_source,
                        "the outbox's sequence went back: read from the start"
                    );
                    self.forget_floors();
                }
            }
            _ => self.floor.restart(),
        }
    }

    pub(super) fn on_lowest(&mut self, forgotten: u64, result: Result<Lowest, store::Error>) {
        self.running.floor = false;
        self.note("floor", result.as_ref().err());
        match result {
            // Floors given up meanwhile: what this look left out, such as a paused topic, may count again.
            Ok(lowest) if forgotten == self.cursors.forgotten() => {
                if let Some(ceiling) = self.floor.prove(lowest.xmin, lowest.cut, Instant::now()) {
                    self.cursors.raise(ceiling, &lowest.buckets);
                    let floors = self.cursors.floors(self.leases.serving(Instant::now()));
                    let lowest = floors.iter().map(|(_, floor)| floor.unsigned_abs()).min();
                    self.setup.stats.floor.store(lowest.unwrap_or(0), Relaxed);
                }
            }
            _ => self.floor.restart(),
        }
    }

    /// The full scan, in parts: what it finds is published and counted, and means that the proof has a hole.
    pub(super) fn look_below(&mut self, now: Instant) {
        if self.running.below || now < self.pace.below {
            return;
        }
        self.pace.below = now + self.setup.tuning.relay_full_scan / u32::from(PARTS.unsigned_abs());
        self.pace.eighth = (self.pace.eighth + 1) % PARTS;
        let mut buckets = self.leases.serving(now);
        buckets.retain(|bucket| bucket % PARTS == self.pace.eighth);
        let mut floors = self.cursors.floors(buckets);
        floors.retain(|(_, floor)| *floor > 0);
        if floors.is_empty() {
            return;
        }
        self.running.below = true;
        let (store, forgotten, still) = (self.store.clone(), self.cursors.forgotten(), self.still());
        self.tasks.spawn(async move {
            let result = store.below(&floors, &still).await;
            Event::Below { forgotten, result }
        });
    }

    pub(super) fn on_below(&mut self, forgotten: u64, result: Result<Vec<(i16, i64, i64)>, store::Error>) {
        self.running.below = false;
        self.note("full scan", result.as_ref().err());
        // A new connection may not have been noticed yet: lost marks are no hole in the proof.
        if forgotten != self.cursors.forgotten() || self.connections != self.store.connections() {
            return;
        }
        for (bucket, era, rows) in result.unwrap_or_default() {
            if self.cursors.is_era(bucket, era) {
                tracing::error!(source = self.ce_source, bucket, rows, "unsent rows below the floor");
                self.setup.stats.below_floor.fetch_add(rows.unsigned_abs(), Relaxed);
            }
            self.cursors.forget(bucket);
            self.floor.restart();
            self.pace.fetch = Instant::now();
        }
    }
}
