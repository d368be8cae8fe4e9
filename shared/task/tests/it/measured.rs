//! The metrics that alarms stand on.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use opentelemetry::{KeyValue, global};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use serde_json::json;
use waybill_task::{New, Settings, Stop, Worker, metrics, operate};
use waybill_testkit::eventually;

use crate::support::*;

struct Measured {
    provider: SdkMeterProvider,
    exporter: InMemoryMetricExporter,
}

impl Measured {
    /// For the process; tests are told apart by kinds of their own.
    fn start() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        global::set_meter_provider(provider.clone());
        Self { provider, exporter }
    }

    /// The largest value of a metric with these label values.
    fn value(&self, name: &str, labels: &[&str]) -> Option<f64> {
        self.exporter.reset();
        self.provider.force_flush().unwrap();
        let finished = self.exporter.get_finished_metrics().unwrap();
        let scopes = finished.iter().flat_map(|resource| resource.scope_metrics());
        let mut found: Option<f64> = None;
        for metric in scopes.flat_map(|scope| scope.metrics()).filter(|metric| metric.name() == name) {
            let mut look = |attributes: Vec<&KeyValue>, value: f64| {
                let has = |label: &&str| attributes.iter().any(|a| a.value.as_str() == *label);
                if labels.iter().all(has) {
                    found = Some(found.map_or(value, |other| other.max(value)));
                }
            };
            match metric.data() {
                AggregatedMetrics::F64(MetricData::Gauge(gauge)) => {
                    gauge.data_points().for_each(|p| look(p.attributes().collect(), p.value()));
                }
                AggregatedMetrics::I64(MetricData::Gauge(gauge)) => {
                    gauge.data_points().for_each(|p| look(p.attributes().collect(), p.value() as f64));
                }
                AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                    sum.data_points().for_each(|p| look(p.attributes().collect(), p.value() as f64));
                }
                _ => {}
            }
        }
        found
    }

    async fn until(&self, name: &str, labels: &[&str], holds: impl Fn(f64) -> bool) {
        eventually(async || match self.value(name, labels) {
            Some(value) if holds(value) => Ok(()),
            other => Err(format!("{name} {labels:?}: {other:?}")),
        })
        .await;
    }
}

#[tokio::test]
async fn failed_tasks_and_the_oldest_due_one_show_and_fall_back() {
    let (measured, database) = (Measured::start(), database().await);
    let pool = &database.pool;
    let fails = play(|_, _| Box::pin(async { Err(Stop::fail(anyhow::anyhow!("never"))) }));
    let failed = enqueue_one(pool, New::of("measured-fails", json!({}))).await;
    // More than are counted, none of them due.
    let later = "insert into messaging.task (id, kind, payload, run_at) \
                 select gen_random_uuid(), 'measured-later', '{}', now() + interval '1 day' from generate_series(1, 10001)";
    run(pool, later).await;
    let late = New::of("measured-nobody", json!({})).run_at(Utc::now() - TimeDelta::days(400));
    let late = enqueue_one(pool, late).await;
    let settings = Settings { sample: Duration::from_millis(50), ..settings() };
    let worker =
        Beside::run(Worker::builder(pool.clone(), settings).on("measured-fails", fails).build().unwrap());
    measured.until(metrics::TASKS, &["measured-fails", "failed"], |count| count == 1.0).await;
    measured.until(metrics::TASKS, &["measured-nobody", "pending"], |count| count == 1.0).await;
    measured.until(metrics::ATTEMPTS, &["measured-fails", "failed"], |count| count == 1.0).await;
    measured.until(metrics::OLDEST_DUE, &["measured-nobody", "false"], |age| age > 399.0 * 86_400.0).await;
    measured.until(metrics::OLDEST_DUE, &["measured-fails", "true"], |age| age == 0.0).await;
    for id in [failed, late] {
        operate::cancel(pool, id).await.unwrap();
    }
    measured.until(metrics::TASKS, &["measured-fails", "failed"], |count| count == 0.0).await;
    measured.until(metrics::TASKS, &["measured-nobody", "pending"], |count| count == 0.0).await;
    measured.until(metrics::OLDEST_DUE, &["measured-nobody", "false"], |age| age == 0.0).await;
    worker.stop().await;
}
