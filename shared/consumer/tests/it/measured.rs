//! The metrics that alarms stand on.

use opentelemetry::global;
use opentelemetry_sdk::metrics::{
    InMemoryMetricExporter, PeriodicReader, SdkMeterProvider,
    data::{AggregatedMetrics, MetricData},
};
use waybill_consumer::metrics;
use waybill_testkit::{Topics, eventually};

use crate::support::{
    Act, Effects, GROUP, Running, Source, database, each, orders, settings, topics, until_effects,
};

struct Measured {
    provider: SdkMeterProvider,
    exporter: InMemoryMetricExporter,
}

impl Measured {
    /// For the process; other tests' consumers are told apart by their groups.
    fn start() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        global::set_meter_provider(provider.clone());
        Self { provider, exporter }
    }

    /// The newest value of a metric for this test's group and further label values.
    fn value(&self, topics: &Topics, name: &str, labels: &[&str]) -> Option<f64> {
        self.exporter.reset();
        self.provider.force_flush().unwrap();
        let group = topics.name(GROUP);
        let finished = self.exporter.get_finished_metrics().unwrap();
        let scopes = finished.iter().flat_map(|resource| resource.scope_metrics());
        let all = scopes.flat_map(|scope| scope.metrics()).filter(|metric| metric.name() == name);
        let mut found = None;
        for metric in all {
            let mut look = |attributes: Vec<String>, value: f64| {
                let has = |label: &str| attributes.iter().any(|value| value == label);
                if has(&group) && labels.iter().all(|label| has(label)) {
                    found = Some(value);
                }
            };
            let text = |attribute: &opentelemetry::KeyValue| attribute.value.as_str().into_owned();
            match metric.data() {
                AggregatedMetrics::F64(MetricData::Gauge(gauge)) => gauge
                    .data_points()
                    .for_each(|point| look(point.attributes().map(text).collect(), point.value())),
                AggregatedMetrics::U64(MetricData::Sum(sum)) => sum
                    .data_points()
                    .for_each(|point| look(point.attributes().map(text).collect(), point.value() as f64)),
                AggregatedMetrics::F64(MetricData::Histogram(histogram)) => histogram
                    .data_points()
                    .for_each(|point| look(point.attributes().map(text).collect(), point.count() as f64)),
                _ => {}
            }
        }
        found
    }
}

#[tokio::test]
async fn outcomes_ages_and_blocked_partitions_are_measured() {
    let measured = Measured::start();
    let (database, topics, handler) = (database().await, topics(2).await, Effects::default());
    let (source, sent) = (Source::new(&topics), orders(3));
    handler.on(sent[1].order_id, Act::Transient);
    let id = source.orders(0, &sent[..1]).await[0];
    source.order(0, &sent[0], id).await;
    source.orders(0, &sent[1..]).await;
    source.raw(1, None, None, &[]).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    let value = |name: &str, labels: &[&str]| measured.value(&topics, name, labels);
    let until = async |name: &str, labels: &[&str], wanted: fn(f64) -> bool| {
        eventually(async || match value(name, labels) {
            Some(seen) if wanted(seen) => Ok(()),
            other => Err(format!("{name} {labels:?}: {other:?}")),
        })
        .await;
    };
    until(metrics::MESSAGES, &[metrics::DONE], |count| count == 1.0).await;
    until(metrics::MESSAGES, &[metrics::DUPLICATE], |count| count == 1.0).await;
    until(metrics::MESSAGES, &[metrics::DEAD], |count| count == 1.0).await;
    until(metrics::MESSAGES, &[metrics::RETRIED], |count| count >= 2.0).await;
    until(metrics::PROCESS_DURATION, &[], |count| count >= 3.0).await;
    until(metrics::PARTITION_BLOCKED, &["0", metrics::TRANSIENT], |blocked| blocked == 1.0).await;
    until(metrics::OLDEST_AGE, &["0"], |age| age > 0.5).await;
    assert_eq!(value(metrics::OLDEST_AGE, &["1"]), Some(0.0));
    assert_eq!(value(metrics::PARTITION_BLOCKED, &["1", metrics::TRANSIENT]), Some(0.0));
    handler.heal(sent[1].order_id);
    until_effects(&database.pool, 3).await;
    until(metrics::OLDEST_AGE, &["0"], |age| age == 0.0).await;
    until(metrics::MESSAGES, &[metrics::DONE], |count| count == 3.0).await;
    running.stop().await;
}
