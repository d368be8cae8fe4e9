//! Instruments of jobs.

use chrono::{DateTime, Utc};
use opentelemetry::metrics::{Counter, Gauge};
use opentelemetry::{KeyValue, global};

/// When a job last succeeded on any instance, in seconds since 1970, by `job`; 0 when it never did.
pub const LAST_SUCCESS: &str = "job.last_success.timestamp";
/// How often a job should run, in seconds, by `job`.
pub const INTERVAL: &str = "job.interval";
/// Runs that ended here, by `job` and `outcome` (`succeeded`, `failed`).
pub const RUNS: &str = "job.runs";

#[derive(Debug, Clone)]
pub(super) struct Metrics {
    last_success: Gauge<f64>,
    interval: Gauge<f64>,
    runs: Counter<u64>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let meter = global::meter("waybill.service");
        Self {
            last_success: meter
                .f64_gauge(LAST_SUCCESS)
                .with_unit("s")
                .with_description("When the job last succeeded on any instance, since 1970; 0: never")
                .build(),
            interval: meter
                .f64_gauge(INTERVAL)
                .with_unit("s")
                .with_description("How often the job should run")
                .build(),
            runs: meter.u64_counter(RUNS).with_unit("{run}").with_description("Runs that ended here").build(),
        }
    }

    pub(super) fn known(&self, job: &'static str, every: std::time::Duration) {
        self.interval.record(every.as_secs_f64(), &[KeyValue::new("job", job)]);
        // So that the counters exist before they count.
        for outcome in ["succeeded", "failed"] {
            self.runs.add(0, &[KeyValue::new("job", job), KeyValue::new("outcome", outcome)]);
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "milliseconds since 1970 are far below 2^53")]
    pub(super) fn last_success(&self, job: &'static str, at: Option<DateTime<Utc>>) {
        let seconds = at.map_or(0.0, |at| at.timestamp_millis() as f64 / 1000.0);
        self.last_success.record(seconds, &[KeyValue::new("job", job)]);
    }

    pub(super) fn ran(&self, job: &'static str, succeeded: bool) {
        let outcome = if succeeded { "succeeded" } else { "failed" };
        self.runs.add(1, &[KeyValue::new("job", job), KeyValue::new("outcome", outcome)]);
    }
}
