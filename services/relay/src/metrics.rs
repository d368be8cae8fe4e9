//! What the relay counts, and its instruments. Names are constants here and nowhere else.
//!
//! Every instance reports the buckets that it owns: sums and maxima over the instances are the truth.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::metrics::{Histogram, Meter};
use opentelemetry::{KeyValue, global};
use serde::Serialize;

/// Age of the oldest unsent row, seconds: the alarm.
pub const OLDEST_UNSENT_AGE: &str = "waybill.relay.oldest_unsent.age";
/// Unsent rows, sampled; counting stops at 10,000.
pub const UNSENT: &str = "waybill.relay.unsent";
/// Rows acknowledged by the broker.
pub const PUBLISHED: &str = "waybill.relay.published";
/// Time from writing a row to the broker's acknowledgement, seconds.
pub const LATENCY: &str = "waybill.relay.latency";
/// Rows that the producer has.
pub const IN_FLIGHT: &str = "waybill.relay.in_flight";
/// Dead rows.
pub const DEAD: &str = "waybill.relay.dead";
/// Keys behind a dead row.
pub const BLOCKED: &str = "waybill.relay.blocked_keys";
/// Rows held behind dead ones, sampled; counting stops at 10,000.
pub const HELD: &str = "waybill.relay.held";
/// Age of the oldest row held behind a dead one, seconds.
pub const OLDEST_HELD_AGE: &str = "waybill.relay.oldest_held.age";
/// Unsent rows that a full scan found below a floor. Must stay 0.
pub const BELOW_FLOOR: &str = "waybill.relay.below_floor";
/// Topics that are unknown or not permitted.
pub const PAUSED: &str = "waybill.relay.paused_topics";
/// Buckets owned.
pub const BUCKETS: &str = "waybill.relay.buckets";
/// Buckets gained and lost.
pub const LEASE_CHANGES: &str = "waybill.relay.lease_changes";
/// Fetches that brought rows, by what caused them (`wake` = `hint`, `poll`).
pub const WAKES: &str = "waybill.relay.wakes";
/// Acknowledgements of a key that went backwards in `seq`. Must stay 0.
pub const INVERSIONS: &str = "waybill.relay.inversions";
/// Rows found behind a cursor: they committed late, or their topic had been left out for a while.
pub const LATE: &str = "waybill.relay.late_commits";
/// Acknowledged rows that were marked or gone already: another relay sent them too.
pub const DOUBLE: &str = "waybill.relay.double_marks";
/// Producers replaced because of a fatal error or a lost lease.
pub const REBUILDS: &str = "waybill.relay.producer_rebuilds";
/// Rows purged after their retention.
pub const PURGED: &str = "waybill.relay.purged";

/// Figures of one source.
#[derive(Debug, Default)]
pub struct Stats {
    /// Rows acknowledged.
    pub published: AtomicU64,
    /// Rows with the producer.
    pub in_flight: AtomicU64,
    /// Buckets owned.
    pub buckets: AtomicU64,
    /// Buckets gained and lost.
    pub lease_changes: AtomicU64,
    /// Fetches that brought rows and were caused by a hint.
    pub wakes_by_hint: AtomicU64,
    /// Fetches that brought rows and were caused by polling.
    pub wakes_by_poll: AtomicU64,
    /// Backward steps of a key.
    pub inversions: AtomicU64,
    /// Rows found behind the cursor.
    pub late_commits: AtomicU64,
    /// Acknowledged rows that were not unsent any more.
    pub double_marks: AtomicU64,
    /// Producers replaced.
    pub rebuilds: AtomicU64,
    /// Unsent rows found below a floor.
    pub below_floor: AtomicU64,
    /// Rows purged.
    pub purged: AtomicU64,
    /// Unsent rows in the last sample.
    pub unsent: AtomicI64,
    /// Dead rows in the last sample.
    pub dead: AtomicI64,
    /// Blocked keys in the last sample.
    pub blocked: AtomicI64,
    /// The lowest floor of the owned buckets, a seq.
    pub floor: AtomicU64,
    /// Held rows in the last sample.
    pub held: AtomicI64,
    /// Age of the oldest held row in the last sample, milliseconds.
    pub oldest_held_millis: AtomicU64,
    /// Age of the oldest unsent row in the last sample, milliseconds.
    pub oldest_millis: AtomicU64,
    /// Whether this instance owns buckets: only an owner reports samples.
    pub owner: AtomicBool,
    paused: Mutex<BTreeMap<String, String>>,
}

/// A source in `GET /status`.
#[derive(Debug, Clone, Serialize)]
pub struct Snapshot {
    published: u64,
    in_flight: u64,
    buckets: u64,
    unsent: i64,
    oldest_unsent_seconds: f64,
    dead: i64,
    blocked_keys: i64,
    held: i64,
    oldest_held_seconds: f64,
    inversions: u64,
    below_floor: u64,
    floor: u64,
    paused_topics: BTreeMap<String, String>,
}

impl Stats {
    /// A topic paused, or goes on (`None`).
    pub fn pause(&self, topic: &str, reason: Option<String>) {
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        match reason {
            Some(reason) => drop(paused.insert(topic.to_owned(), reason)),
            None => drop(paused.remove(topic)),
        }
    }

    /// Paused topics, each with the broker's reason.
    pub fn paused(&self) -> BTreeMap<String, String> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All that a person wants to see at a glance.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            published: self.published.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            buckets: self.buckets.load(Relaxed),
            unsent: self.unsent.load(Relaxed),
            oldest_unsent_seconds: self.oldest_millis.load(Relaxed) as f64 / 1000.0,
            dead: self.dead.load(Relaxed),
            blocked_keys: self.blocked.load(Relaxed),
            held: self.held.load(Relaxed),
            oldest_held_seconds: self.oldest_held_millis.load(Relaxed) as f64 / 1000.0,
            inversions: self.inversions.load(Relaxed),
            below_floor: self.below_floor.load(Relaxed),
            floor: self.floor.load(Relaxed),
            paused_topics: self.paused(),
        }
    }
}

/// Records commit-to-acknowledgement times of one source.
#[derive(Debug, Clone)]
pub struct Latency {
    histogram: Histogram<f64>,
    source: [KeyValue; 1],
}

impl Latency {
    /// For a source.
    pub fn new(source: &str) -> Self {
        let buckets = vec![0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0];
        let histogram = meter().f64_histogram(LATENCY).with_unit("s").with_boundaries(buckets).build();
        Self { histogram, source: [KeyValue::new("source", source.to_owned())] }
    }

    /// One row.
    pub fn record(&self, latency: Duration) {
        self.histogram.record(latency.as_secs_f64(), &self.source);
    }
}

fn meter() -> Meter {
    global::meter("waybill.relay")
}

type Sources = Arc<Vec<(KeyValue, Arc<Stats>)>>;

/// Makes the instruments of all sources observable.
pub fn observe(sources: &[(String, Arc<Stats>)]) {
    let sources: Sources =
        Arc::new(sources.iter().map(|(n, s)| (KeyValue::new("source", n.clone()), s.clone())).collect());
    let meter = meter();
    counter(&meter, &sources, PUBLISHED, |s| s.published.load(Relaxed));
    counter(&meter, &sources, LEASE_CHANGES, |s| s.lease_changes.load(Relaxed));
    counter(&meter, &sources, INVERSIONS, |s| s.inversions.load(Relaxed));
    counter(&meter, &sources, LATE, |s| s.late_commits.load(Relaxed));
    counter(&meter, &sources, DOUBLE, |s| s.double_marks.load(Relaxed));
    counter(&meter, &sources, REBUILDS, |s| s.rebuilds.load(Relaxed));
    counter(&meter, &sources, BELOW_FLOOR, |s| s.below_floor.load(Relaxed));
    counter(&meter, &sources, PURGED, |s| s.purged.load(Relaxed));
    gauge(&meter, &sources, IN_FLIGHT, false, |s| s.in_flight.load(Relaxed) as f64);
    gauge(&meter, &sources, BUCKETS, false, |s| s.buckets.load(Relaxed) as f64);
    gauge(&meter, &sources, PAUSED, false, |s| s.paused().len() as f64);
    gauge(&meter, &sources, UNSENT, true, |s| s.unsent.load(Relaxed) as f64);
    gauge(&meter, &sources, DEAD, true, |s| s.dead.load(Relaxed) as f64);
    gauge(&meter, &sources, BLOCKED, true, |s| s.blocked.load(Relaxed) as f64);
    gauge(&meter, &sources, HELD, true, |s| s.held.load(Relaxed) as f64);
    age(&meter, &sources, OLDEST_UNSENT_AGE, |s| &s.oldest_millis);
    age(&meter, &sources, OLDEST_HELD_AGE, |s| &s.oldest_held_millis);
    let wakes = meter.u64_observable_counter(WAKES).with_callback(move |seen| {
        for (source, stats) in sources.iter() {
            for (wake, count) in [("hint", &stats.wakes_by_hint), ("poll", &stats.wakes_by_poll)] {
                seen.observe(count.load(Relaxed), &[source.clone(), KeyValue::new("wake", wake)]);
            }
        }
    });
    wakes.build();
}

fn counter(meter: &Meter, sources: &Sources, name: &'static str, value: fn(&Stats) -> u64) {
    let sources = sources.clone();
    let counter = meter.u64_observable_counter(name).with_callback(move |seen| {
        for (source, stats) in sources.iter() {
            seen.observe(value(stats), std::slice::from_ref(source));
        }
    });
    counter.build();
}

fn gauge(meter: &Meter, sources: &Sources, name: &'static str, owner: bool, value: fn(&Stats) -> f64) {
    let sources = sources.clone();
    let gauge = meter.f64_observable_gauge(name).with_callback(move |seen| {
        for (source, stats) in sources.iter().filter(|(_, stats)| !owner || stats.owner.load(Relaxed)) {
            seen.observe(value(stats), std::slice::from_ref(source));
        }
    });
    gauge.build();
}

fn age(meter: &Meter, sources: &Sources, name: &'static str, millis: fn(&Stats) -> &AtomicU64) {
    let sources = sources.clone();
    let gauge = meter.f64_observable_gauge(name).with_unit("s").with_callback(move |seen| {
        for (source, stats) in sources.iter().filter(|(_, stats)| stats.owner.load(Relaxed)) {
            seen.observe(millis(stats).load(Relaxed) as f64 / 1000.0, std::slice::from_ref(source));
        }
    });
    gauge.build();
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_readme_lists_every_metric() {
        let readme = include_str!("../README.md");
        let names = include_str!("metrics.rs").lines().filter_map(|line| {
            let (_, name) = line.strip_prefix("pub const ")?.split_once("= \"")?;
            name.strip_suffix("\";")
        });
        let names: Vec<String> = names.map(|name| name.replace('.', "_")).collect();
        assert!(names.len() > 15, "{names:?}");
        for name in names {
            assert!(readme.contains(&format!("`{name}")), "{name} is not in the README");
        }
    }
}
