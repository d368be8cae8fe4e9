//! Names of the metrics and the instruments behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use opentelemetry::metrics::{AsyncInstrument, Counter, Histogram};
use opentelemetry::{KeyValue, global};

use crate::Status;

/// Instrumentation scope.
pub const METER: &str = "waybill.task";
/// Counter of attempts by `kind` and `outcome`: [`OUTCOMES`].
pub const ATTEMPTS: &str = "waybill.task.attempts";
/// Histogram of the time of an attempt by `kind`, in seconds.
pub const DURATION: &str = "waybill.task.duration";
/// Gauge, sampled: tasks by `kind` and `status` (pending, running, failed), each counted up to [`COUNTED`]. Every instance
/// reports all tasks of the database: take maxima over instances. Any failed one is an alarm.
pub const TASKS: &str = "waybill.task.tasks";
/// Gauge, sampled: seconds since the oldest task that is not taken was due, by `kind` and by whether this process has a
/// handler for it, `known`. The alarm.
pub const OLDEST_DUE: &str = "waybill.task.oldest_due.age";
/// Counter: ids that found the hand-off channel full, left to the poller.
pub const HAND_OFF_FULL: &str = "waybill.task.hand_off_full";

/// Most rows that a sample counts for [`TASKS`], open and failed ones each; of the open ones those due the longest.
pub const COUNTED: i64 = 10_000;
/// Kinds without a handler that the gauges name in the life of a process, as they appear: kinds come from the database,
/// and whoever writes there must not decide how many series there are.
pub const NAMED: usize = 20;
/// `kind` of all further ones together, and of those with a name of more than 100 bytes.
pub const OTHER: &str = "_OTHER";

pub(crate) const DONE: &str = "done";
pub(crate) const RETRIED: &str = "retried";
pub(crate) const FAILED: &str = "failed";
pub(crate) const CANCELLED: &str = "cancelled";
pub(crate) const LOST: &str = "lost";
pub(crate) const RELEASED: &str = "released";
/// Every outcome of [`ATTEMPTS`]: `lost` is one whose task was taken over, `released` one that a shutdown dropped.
pub const OUTCOMES: [&str; 6] = [DONE, RETRIED, FAILED, CANCELLED, LOST, RELEASED];

const SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];

const NAME_BYTES: usize = 100;

/// Tasks of a kind and state that a look at the table found.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) kind: String,
    pub(crate) status: Status,
    pub(crate) count: i64,
    /// Seconds since the first of them was due; below 0 when none is.
    pub(crate) due_for: f64,
}

/// What the gauges say.
#[derive(Debug)]
struct Gauges {
    known: BTreeSet<String>,
    named: BTreeSet<String>,
    counts: BTreeMap<(String, &'static str), i64>,
    oldest: BTreeMap<String, f64>,
}

impl Gauges {
    fn new(known: BTreeSet<String>) -> Self {
        let oldest = known.iter().map(|kind| (kind.clone(), 0.0)).collect();
        Self { known, named: BTreeSet::new(), counts: BTreeMap::new(), oldest }
    }

    /// A kind or state that has gone is reported as 0 once more and always, so that an alarm falls back.
    fn show(&mut self, seen: Vec<Seen>) {
        self.counts.values_mut().for_each(|count| *count = 0);
        self.oldest.values_mut().for_each(|age| *age = 0.0);
        for Seen { kind, status, count, due_for } in seen {
            let kind = self.label(kind);
            let oldest = self.oldest.entry(kind.clone()).or_default();
            *oldest = oldest.max(due_for);
            *self.counts.entry((kind, status.as_str())).or_default() += count;
        }
    }

    fn label(&mut self, kind: String) -> String {
        if self.known.contains(&kind) || self.named.contains(&kind) {
            return kind;
        }
        if self.named.len() >= NAMED || kind.len() > NAME_BYTES {
            return OTHER.to_owned();
        }
        self.named.insert(kind.clone());
        kind
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    attempts: Counter<u64>,
    duration: Histogram<f64>,
    gauges: Arc<Mutex<Gauges>>,
}

impl Metrics {
    pub(crate) fn new(known: BTreeSet<String>) -> Self {
        let meter = global::meter(METER);
        let gauges = Arc::new(Mutex::new(Gauges::new(known)));
        observe(&gauges);
        Self {
            attempts: meter.u64_counter(ATTEMPTS).with_unit("{attempt}").build(),
            duration: meter.f64_histogram(DURATION).with_unit("s").with_boundaries(SECONDS.to_vec()).build(),
            gauges,
        }
    }

    pub(crate) fn ended(&self, kind: &str, outcome: &'static str, seconds: f64) {
        self.attempts.add(1, &[KeyValue::new("kind", kind.to_owned()), KeyValue::new("outcome", outcome)]);
        self.duration.record(seconds, &[KeyValue::new("kind", kind.to_owned())]);
    }

    pub(crate) fn sampled(&self, seen: Vec<Seen>) {
        self.gauges.lock().unwrap_or_else(PoisonError::into_inner).show(seen);
    }
}

pub(crate) fn hand_off_full() {
    static FULL: LazyLock<Counter<u64>> =
        LazyLock::new(|| global::meter(METER).u64_counter(HAND_OFF_FULL).with_unit("{task}").build());
    FULL.add(1, &[]);
}

/// Registers the gauges. They are held weakly, because a callback is never unregistered.
fn observe(gauges: &Arc<Mutex<Gauges>>) {
    fn read(gauges: &Weak<Mutex<Gauges>>, told: impl FnOnce(&Gauges)) {
        if let Some(gauges) = gauges.upgrade() {
            told(&gauges.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
    let meter = global::meter(METER);
    let of = Arc::downgrade(gauges);
    let tasks = move |observer: &dyn AsyncInstrument<i64>| {
        read(&of, |gauges| {
            for ((kind, status), count) in &gauges.counts {
                let labels = [KeyValue::new("kind", kind.clone()), KeyValue::new("status", *status)];
                observer.observe(*count, &labels);
            }
        });
    };
    // The meter keeps the callbacks; the handles are not needed.
    let _ = meter.i64_observable_gauge(TASKS).with_unit("{task}").with_callback(tasks).build();
    let of = Arc::downgrade(gauges);
    let oldest = move |observer: &dyn AsyncInstrument<f64>| {
        read(&of, |gauges| {
            for (kind, age) in &gauges.oldest {
                let known = gauges.known.contains(kind);
                observer.observe(*age, &[KeyValue::new("kind", kind.clone()), KeyValue::new("known", known)]);
            }
        });
    };
    let _ = meter.f64_observable_gauge(OLDEST_DUE).with_unit("s").with_callback(oldest).build();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(kind: impl Into<String>, due_for: f64) -> Seen {
        Seen { kind: kind.into(), status: Status::Pending, count: 2, due_for }
    }

    #[test]
    fn the_kinds_of_a_table_decide_neither_how_many_series_there_are_nor_how_long_a_name_is() {
        let mut gauges = Gauges::new(["work".to_owned()].into());
        gauges.show(vec![seen("gone", 7.0), seen("x".repeat(101), 900.0)]);
        for round in 0..50 {
            let mut table: Vec<Seen> =
                (0..50).map(|n| seen(format!("kind-{round}-{n}"), f64::from(n))).collect();
            table.push(seen("work", -5.0));
            gauges.show(table);
        }
        assert_eq!(gauges.counts.len(), 1 + NAMED + 1);
        assert_eq!(gauges.oldest.len(), 1 + NAMED + 1);
        let count = |kind: &str| gauges.counts[&(kind.to_owned(), "pending")];
        // Nothing is left out of the sums, and what has gone is told so.
        assert_eq!([count("work"), count("gone"), count("kind-0-0"), count(OTHER)], [2, 0, 0, 100]);
        assert_eq!([gauges.oldest["work"], gauges.oldest["gone"], gauges.oldest[OTHER]], [0.0, 0.0, 49.0]);
    }
}
