//! Instruments of the notifications.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::Utc;
use opentelemetry::metrics::Counter;
use opentelemetry::{KeyValue, global};
use sqlx::PgPool;

use super::store;

/// Instrumentation scope.
const METER: &str = "waybill.notification";
/// Gauge, sampled: seconds since the oldest notification was written that is to be sent, or was given up and waits for
/// an operator. The alarm.
pub const OLDEST_UNSENT_AGE: &str = "waybill.notification.oldest_unsent.age";
/// Counter of notifications sent, by `kind` and `channel`.
pub const SENT: &str = "waybill.notification.sent";
/// Counter of failed tries, by `channel`.
pub const FAILED: &str = "waybill.notification.failed";

/// No unsent notification.
const NONE: i64 = i64::MAX;
/// Time between two samples.
const SAMPLE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Metrics {
    sent: Counter<u64>,
    failed: Counter<u64>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let meter = global::meter(METER);
        Self {
            sent: meter.u64_counter(SENT).with_unit("{notification}").build(),
            failed: meter.u64_counter(FAILED).with_unit("{notification}").build(),
        }
    }

    pub(super) fn sent(&self, kind: &str, channel: &str) {
        self.sent
            .add(1, &[KeyValue::new("kind", kind.to_owned()), KeyValue::new("channel", channel.to_owned())]);
    }

    pub(super) fn failed(&self, channel: &str) {
        self.failed.add(1, &[KeyValue::new("channel", channel.to_owned())]);
    }
}

/// Keeps [`OLDEST_UNSENT_AGE`].
#[derive(Debug)]
pub struct OldestUnsent {
    pool: PgPool,
    /// When the oldest was written, in milliseconds: the age goes on growing while the database does not answer.
    oldest_ms: Arc<AtomicI64>,
}

impl OldestUnsent {
    /// Registers the gauge; 0 until the first look.
    pub fn new(pool: PgPool) -> Self {
        let oldest_ms = Arc::new(AtomicI64::new(NONE));
        // Weak: a callback is never unregistered.
        let state = Arc::downgrade(&oldest_ms);
        let _ = global::meter(METER)
            .f64_observable_gauge(OLDEST_UNSENT_AGE)
            .with_unit("s")
            .with_description("Seconds since the oldest unsent notification was written")
            .with_callback(move |observer| {
                if let Some(oldest) = state.upgrade() {
                    observer.observe(age(oldest.load(Ordering::Relaxed)), &[]);
                }
            })
            .build();
        Self { pool, oldest_ms }
    }

    /// Looks again and again, for ever.
    pub async fn watch(self) {
        loop {
            // That the database does not answer is the readiness's to say.
            if let Ok(oldest) = store::oldest_unsent(&self.pool).await {
                let oldest = oldest.map_or(NONE, |time| time.timestamp_millis());
                self.oldest_ms.store(oldest, Ordering::Relaxed);
            }
            tokio::time::sleep(SAMPLE).await;
        }
    }
}

fn age(oldest_ms: i64) -> f64 {
    // `NONE` is later than any time: its age is 0.
    Utc::now().timestamp_millis().saturating_sub(oldest_ms).max(0) as f64 / 1_000.0
}
