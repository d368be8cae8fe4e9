//! Names of the metrics and the instruments behind them.

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
/// Gauge, sampled: seconds since the oldest task that is not taken was due. The alarm.
pub const OLDEST_DUE: &str = "waybill.task.oldest_due.age";
/// Counter: ids that found the hand-off channel full, left to the poller.
pub const HAND_OFF_FULL: &str = "waybill.task.hand_off_full";

/// Most rows that a sample counts for [`TASKS`], open and failed ones each.
pub const COUNTED: i64 = 10_000;

pub(crate) const DONE: &str = "done";
pub(crate) const RETRIED: &str = "retried";
pub(crate) const FAILED: &str = "failed";
pub(crate) const CANCELLED: &str = "cancelled";
pub(crate) const LOST: &str = "lost";
pub(crate) const RELEASED: &str = "released";
/// Every outcome of [`ATTEMPTS`]: `lost` is one whose task was taken over, `released` one that a shutdown dropped.
pub const OUTCOMES: [&str; 6] = [DONE, RETRIED, FAILED, CANCELLED, LOST, RELEASED];

const SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];

/// What the last look at the table saw.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) counts: Vec<(String, Status, i64)>,
    pub(crate) oldest_due: f64,
}

#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    attempts: Counter<u64>,
    duration: Histogram<f64>,
    sample: Arc<Mutex<Sample>>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let meter = global::meter(METER);
        let sample = Arc::default();
        observe(&sample);
        Self {
            attempts: meter.u64_counter(ATTEMPTS).with_unit("{attempt}").build(),
            duration: meter.f64_histogram(DURATION).with_unit("s").with_boundaries(SECONDS.to_vec()).build(),
            sample,
        }
    }

    pub(crate) fn ended(&self, kind: &str, outcome: &'static str, seconds: f64) {
        self.attempts.add(1, &[KeyValue::new("kind", kind.to_owned()), KeyValue::new("outcome", outcome)]);
        self.duration.record(seconds, &[KeyValue::new("kind", kind.to_owned())]);
    }

    /// A kind or state that has gone is reported as 0 once more and always, so that an alarm falls back.
    pub(crate) fn sampled(&self, mut sample: Sample) {
        let mut last = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        for (kind, status, _) in &last.counts {
            if !sample.counts.iter().any(|(k, s, _)| k == kind && s == status) {
                sample.counts.push((kind.clone(), *status, 0));
            }
        }
        *last = sample;
    }
}

pub(crate) fn hand_off_full() {
    static FULL: LazyLock<Counter<u64>> =
        LazyLock::new(|| global::meter(METER).u64_counter(HAND_OFF_FULL).with_unit("{task}").build());
    FULL.add(1, &[]);
}

/// Registers the gauges. They hold the sample weakly, because a callback is never unregistered.
fn observe(sample: &Arc<Mutex<Sample>>) {
    let meter = global::meter(METER);
    let read = |sample: &Weak<Mutex<Sample>>| {
        let sample = sample.upgrade()?;
        Some(sample.lock().unwrap_or_else(PoisonError::into_inner).clone())
    };
    let of = Arc::downgrade(sample);
    let tasks = move |observer: &dyn AsyncInstrument<i64>| {
        for (kind, status, count) in read(&of).unwrap_or_default().counts {
            let labels = [KeyValue::new("kind", kind), KeyValue::new("status", status.as_str())];
            observer.observe(count, &labels);
        }
    };
    // The meter keeps the callbacks; the handles are not needed.
    let _ = meter.i64_observable_gauge(TASKS).with_unit("{task}").with_callback(tasks).build();
    let of = Arc::downgrade(sample);
    let oldest = move |observer: &dyn AsyncInstrument<f64>| {
        if let Some(sample) = read(&of) {
            observer.observe(sample.oldest_due, &[]);
        }
    };
    let _ = meter.f64_observable_gauge(OLDEST_DUE).with_unit("s").with_callback(oldest).build();
}
