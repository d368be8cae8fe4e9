//! Instruments of the console.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::metrics::{Counter, Histogram};
use opentelemetry::{KeyValue, global};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::letters;

/// Gauge: dead letters that are not settled, by `topic`. The alarm: any.
pub const UNSETTLED: &str = "waybill.console.dead_letters.open";
/// Gauge: seconds since the oldest of them died, by `topic`; 0 when there is none.
pub const OLDEST_AGE: &str = "waybill.console.dead_letters.oldest.age";
/// Gauge: seconds until the topic may delete the oldest of them, by `topic`; without value when there is none.
pub const DELETES_IN: &str = "waybill.console.retention.left";
/// Counter of dead letters that were new to the index.
pub const INDEXED: &str = "waybill.console.indexed";
/// Histogram of the time that a batch takes to be in the index.
pub const INDEX_DURATION: &str = "waybill.console.index.duration";
/// Counter of replayed records, by `result`: `sent`, `failed`.
pub const REPLAYED: &str = "waybill.console.replayed";

/// Between two looks at the counts.
const LOOK: Duration = Duration::from_secs(10);

/// Per topic: unsettled, age of the oldest, time until it is deleted.
type Seen = HashMap<String, (i64, i64, Option<i64>)>;

/// The instruments. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    indexed: Counter<u64>,
    duration: Histogram<f64>,
    replayed: Counter<u64>,
    seen: Arc<Mutex<Seen>>,
}

impl Metrics {
    /// Made once the process's meter provider is set.
    #[must_use]
    pub fn new() -> Self {
        let meter = global::meter("waybill.console");
        let seen: Arc<Mutex<Seen>> = Arc::default();
        for (name, unit, text, of) in GAUGES {
            // Weak: a callback is never unregistered.
            let seen = Arc::downgrade(&seen);
            let _ = meter
                .i64_observable_gauge(name)
                .with_unit(unit)
                .with_description(text)
                .with_callback(move |observer| {
                    let Some(seen) = seen.upgrade() else { return };
                    for (topic, row) in seen.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                        if let Some(value) = of(row) {
                            observer.observe(value, &[KeyValue::new("topic", topic.clone())]);
                        }
                    }
                })
                .build();
        }
        let replayed = meter.u64_counter(REPLAYED).with_unit("{record}").build();
        for result in ["sent", "failed"] {
            replayed.add(0, &[KeyValue::new("result", result)]);
        }
        Self {
            indexed: meter.u64_counter(INDEXED).with_unit("{record}").build(),
            duration: meter.f64_histogram(INDEX_DURATION).with_unit("s").build(),
            replayed,
            seen,
        }
    }

    pub(crate) fn indexed(&self, records: u64, took: Duration) {
        self.indexed.add(records, &[]);
        self.duration.record(took.as_secs_f64(), &[]);
    }

    pub(crate) fn replayed(&self, sent: usize, failed: usize) {
        self.replayed.add(sent as u64, &[KeyValue::new("result", "sent")]);
        self.replayed.add(failed as u64, &[KeyValue::new("result", "failed")]);
    }

    /// Looks at the counts again and again until `shutdown`.
    pub(crate) async fn watch(self, pool: PgPool, shutdown: CancellationToken) {
        loop {
            match letters::topics(&pool).await {
                Ok(topics) => {
                    let row = |topic: letters::view::Topic| {
                        let age = topic.oldest_age_s.unwrap_or(0);
                        (topic.topic, (topic.unsettled, age, topic.deletes_in_s))
                    };
                    *self.seen.lock().unwrap_or_else(PoisonError::into_inner) =
                        topics.into_iter().map(row).collect();
                }
                Err(error) => tracing::debug!(%error, "counts cannot be read"),
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

type Gauge = (&'static str, &'static str, &'static str, fn(&(i64, i64, Option<i64>)) -> Option<i64>);

const GAUGES: [Gauge; 3] = [
    (UNSETTLED, "{letter}", "Dead letters that are not settled", |row| Some(row.0)),
    (OLDEST_AGE, "s", "Seconds since the oldest unsettled dead letter died", |row| Some(row.1)),
    (DELETES_IN, "s", "Seconds until retention may delete the oldest unsettled dead letter", |row| row.2),
];
