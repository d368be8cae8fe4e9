//! Names of the metrics and the instruments behind them.

use std::sync::{Arc, PoisonError, Weak, atomic::Ordering};

use chrono::Utc;
use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Histogram, Meter},
};

use crate::{
    breaker::BreakerPhase,
    line::Line,
    park::ParkedGauge,
    status::{Inner, PartitionState, Status},
};

/// Instrumentation scope.
pub const METER: &str = "waybill.consumer";
/// Counter of messages by `outcome`: [`DONE`], [`DUPLICATE`], [`DEAD`], [`RETRIED`].
pub const MESSAGES: &str = "waybill.consumer.messages";
/// Histogram of the time a handler takes, per call, in seconds.
pub const PROCESS_DURATION: &str = "messaging.process.duration";
/// Histogram of the messages in a batch.
pub const BATCH_SIZE: &str = "waybill.consumer.batch.size";
/// Gauge: seconds since the oldest unfinished message of a partition was written. The alarm.
pub const OLDEST_AGE: &str = "waybill.consumer.oldest.age";
/// Gauge: 1 while a partition makes no progress, by `reason`.
pub const PARTITION_BLOCKED: &str = "waybill.consumer.partition_blocked";
/// Gauge: 1 while a partition is paused because its buffer is full.
pub const PARTITION_PAUSED: &str = "waybill.consumer.partition_paused";
/// Gauge: bytes that wait in a partition's buffer.
pub const BUFFER_SIZE: &str = "waybill.consumer.buffer.size";
/// Histogram: seconds between a record's due time and the batch that takes it, by retry topic.
pub const RETRY_LATENESS: &str = "waybill.consumer.retry.lateness";

/// Gauge: 1 for the `state` a subscription's flood breaker is in, `closed`, `open` or `stopped`, else 0.
pub const BREAKER_STATE: &str = "waybill.consumer.breaker_state";

/// Gauge: keys that are parked, by source topic.
pub const PARKED_KEYS: &str = "waybill.consumer.parked.keys";
/// Gauge: messages that are parked.
pub const PARKED_MESSAGES: &str = "waybill.consumer.parked.messages";
/// Gauge: parked keys that wait for an operator.
pub const PARKED_BLOCKED: &str = "waybill.consumer.parked.blocked";
/// Gauge: seconds since the longest parked key was parked; 0 when there is none.
pub const PARKED_OLDEST_AGE: &str = "waybill.consumer.parked.oldest.age";

/// The handler's effect committed.
pub const DONE: &str = "done";
/// The inbox knew the message: skipped.
pub const DUPLICATE: &str = "duplicate";
/// Acknowledged by the dead-letter topic.
pub const DEAD: &str = "dead";
/// A transient failure, to be tried again: in place, or acknowledged by a retry topic.
pub const RETRIED: &str = "retried";

/// A handler failed transiently.
pub const TRANSIENT: &str = "transient";
/// The database refuses or is unreachable.
pub const DATABASE: &str = "database";
/// The dead-letter topic does not acknowledge.
pub const DEAD_LETTER: &str = "dead_letter";
/// A retry topic does not acknowledge.
pub const RETRY_TOPIC: &str = "retry_topic";
/// Most of what was tried lately failed transiently: one message at a time is tried.
pub const BREAKER: &str = "breaker";
/// Too many messages in a row failed for good: an operator must look and resume.
pub const STOPPED: &str = "stopped";
/// Too much is parked.
pub const PARK_FULL: &str = "park_full";
/// The topic of outcomes does not acknowledge.
pub const OUTCOMES: &str = "outcomes";
/// A schema is unknown; it may come with a deployment.
pub const UNKNOWN_SCHEMA: &str = "unknown_schema";
/// The Kafka client delivers nothing although there is something to read, and nobody paused the partition. It is
/// resumed, and stays reported until it moves.
pub const STALLED: &str = "stalled";
/// The Kafka client cannot decompress what comes next: librdkafka was built without the codec, or the batch is damaged.
pub const COMPRESSION: &str = "compression";
/// Every reason of [`PARTITION_BLOCKED`].
pub const REASONS: [&str; 11] = [
    TRANSIENT,
    DATABASE,
    DEAD_LETTER,
    RETRY_TOPIC,
    OUTCOMES,
    UNKNOWN_SCHEMA,
    BREAKER,
    STOPPED,
    PARK_FULL,
    STALLED,
    COMPRESSION,
];

/// Bounds that the conventions give for `messaging.process.duration`.
const SECONDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
const LATENESS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];
const SIZES: [f64; 9] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 150.0, 200.0];

#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    messages: Counter<u64>,
    duration: Histogram<f64>,
    batch: Histogram<u64>,
    lateness: Histogram<f64>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let meter = global::meter(METER);
        Self {
            messages: meter.u64_counter(MESSAGES).with_unit("{message}").build(),
            duration: meter
                .f64_histogram(PROCESS_DURATION)
                .with_unit("s")
                .with_boundaries(SECONDS.to_vec())
                .build(),
            batch: meter
                .u64_histogram(BATCH_SIZE)
                .with_unit("{message}")
                .with_boundaries(SIZES.to_vec())
                .build(),
            lateness: meter
                .f64_histogram(RETRY_LATENESS)
                .with_unit("s")
                .with_boundaries(LATENESS.to_vec())
                .build(),
        }
    }

    /// Every outcome begins at 0, so that the first dead letter of a process is an increase.
    pub(crate) fn begin(&self, topic: &str, group: &str) {
        for outcome in [DONE, DUPLICATE, DEAD, RETRIED] {
            self.messages.add(0, &[KeyValue::new("outcome", outcome), topic_of(topic), group_of(group)]);
        }
    }

    pub(crate) fn count(&self, outcome: &'static str, topic: &str, group: &str, messages: usize) {
        if messages > 0 {
            let outcome = KeyValue::new("outcome", outcome);
            self.messages.add(messages as u64, &[outcome, topic_of(topic), group_of(group)]);
        }
    }

    pub(crate) fn handled(&self, seconds: f64, topic: &str, group: &str) {
        self.duration.record(seconds, &[topic_of(topic), group_of(group)]);
    }

    pub(crate) fn late(&self, seconds: f64, topic: &str, group: &str) {
        self.lateness.record(seconds, &[topic_of(topic), group_of(group)]);
    }

    pub(crate) fn batch(&self, size: usize, topic: &str, group: &str) {
        self.batch.record(size as u64, &[topic_of(topic), group_of(group)]);
    }
}

/// Registers the gauges. They hold the state weakly, because a callback is never unregistered.
pub(crate) fn observe(status: &Status) {
    let meter = global::meter(METER);
    let state = Arc::downgrade(&status.0);
    gauge(&meter, OLDEST_AGE, "s", state.clone(), |partition| {
        vec![(partition.oldest_age(Utc::now().timestamp_millis()), None)]
    });
    gauge(&meter, PARTITION_PAUSED, "{partition}", state.clone(), |partition| {
        vec![(f64::from(partition.paused.load(Ordering::Relaxed)), None)]
    });
    gauge(&meter, BUFFER_SIZE, "By", state.clone(), |partition| {
        vec![(partition.buffer.bytes.load(Ordering::Relaxed) as f64, None)]
    });
    gauge(&meter, PARTITION_BLOCKED, "{partition}", state, |partition| {
        // Every reason is always reported, so that an alarm falls back to 0 and does not go stale at 1.
        let blocked = partition.blocked().map(|blocked| blocked.reason);
        let value = |reason| f64::from(blocked == Some(reason));
        REASONS.iter().map(|&reason| (value(reason), Some(KeyValue::new("reason", reason)))).collect()
    });
}

/// Registers the gauges of subscriptions, by source topic.
pub(crate) fn observe_lines(lines: Vec<Weak<Line>>) {
    let meter = global::meter(METER);
    of_lines(&meter, BREAKER_STATE, "{subscription}", lines.clone(), |line| {
        let now = line.breaker.state().phase;
        let phases = [BreakerPhase::Closed, BreakerPhase::Open, BreakerPhase::Stopped];
        let reading =
            |phase| (f64::from(phase == now), Some(KeyValue::new("state", BreakerPhase::as_str(phase))));
        phases.map(reading).to_vec()
    });
    // Counted in the database, by every instance alike: the largest is the newest, not the sum.
    let parked = |name, unit, read: fn(&ParkedGauge) -> f64| {
        of_lines(&meter, name, unit, lines.clone(), move |line| {
            let parked = line.parked.lock().unwrap_or_else(PoisonError::into_inner);
            parked.iter().map(|gauge| (read(gauge), None)).collect()
        });
    };
    parked(PARKED_KEYS, "{key}", |gauge| gauge.keys as f64);
    parked(PARKED_MESSAGES, "{message}", |gauge| gauge.messages as f64);
    parked(PARKED_BLOCKED, "{key}", |gauge| gauge.blocked as f64);
    parked(PARKED_OLDEST_AGE, "s", |gauge| gauge.oldest_seconds);
}

fn of_lines(
    meter: &Meter,
    name: &'static str,
    unit: &'static str,
    lines: Vec<Weak<Line>>,
    read: impl Fn(&Line) -> Readings + Send + Sync + 'static,
) {
    let callback = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<f64>| {
        for line in lines.iter().filter_map(Weak::upgrade) {
            for (value, extra) in read(&line) {
                let mut labels = vec![topic_of(&line.source), group_of(&line.consumer_group)];
                labels.extend(extra);
                observer.observe(value, &labels);
            }
        }
    };
    let _ = meter.f64_observable_gauge(name).with_unit(unit).with_callback(callback).build();
}

type Readings = Vec<(f64, Option<KeyValue>)>;

fn gauge(
    meter: &Meter,
    name: &'static str,
    unit: &'static str,
    state: Weak<Inner>,
    read: impl Fn(&PartitionState) -> Readings + Send + Sync + 'static,
) {
    let callback = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<f64>| {
        for partition in state.upgrade().iter().flat_map(|state| state.partitions()) {
            for (value, extra) in read(&partition) {
                let id = KeyValue::new("messaging.destination.partition.id", partition.partition.to_string());
                let mut labels = vec![topic_of(&partition.topic), group_of(&partition.group), id];
                labels.extend(extra);
                observer.observe(value, &labels);
            }
        }
    };
    // The meter keeps the callback; the handle is not needed.
    let _ = meter.f64_observable_gauge(name).with_unit(unit).with_callback(callback).build();
}

fn topic_of(topic: &str) -> KeyValue {
    KeyValue::new("messaging.destination.name", topic.to_owned())
}

fn group_of(group: &str) -> KeyValue {
    KeyValue::new("messaging.consumer.group.name", group.to_owned())
}
