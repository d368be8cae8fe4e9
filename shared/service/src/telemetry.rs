//! Logs, traces and metrics of a process.
//!
//! Traces go out by OTLP over HTTP when an endpoint is set; without one, ids are still made, so that `traceparent`
//! is in every outbox row. The exporter runs on a thread of its own: a collector that is down, slow or silent
//! loses spans and nothing else.

use std::time::Duration;

use clap::{Args, ValueEnum};
use opentelemetry::{KeyValue, global, trace::TracerProvider as _};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing_subscriber::filter::{DynFilterFn, EnvFilter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::{ConfigError, metrics};

/// Longest time that the end of a process waits for the last spans.
const FLUSH: Duration = Duration::from_secs(5);
/// Longest time that one export may take.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How a process reports about itself.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Config {
    /// Form of the log lines.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Pretty)]
    pub log_format: LogFormat,
    /// What is logged, in the syntax of tracing's `EnvFilter`, for example `info,sqlx=warn`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub rust_log: String,
    /// Base URL of an OTLP/HTTP collector, for example `http://127.0.0.1:4318`. Without it no span leaves the
    /// process.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otel_exporter_otlp_endpoint: Option<String>,
    /// Share of new traces that are recorded, 0 to 1. A trace that comes from outside keeps its own decision.
    #[arg(long, env = "OTEL_TRACES_SAMPLER_ARG", default_value_t = 0.1)]
    pub otel_traces_sampler_arg: f64,
}

/// Values of `LOG_FORMAT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Pretty,
}

/// Keeps the exporters alive.
#[derive(Debug)]
pub struct Telemetry {
    tracer: SdkTracerProvider,
    meter: SdkMeterProvider,
}

/// Starts logs, traces and metrics. Once a process.
///
/// # Errors
/// A filter, ratio or endpoint that cannot be used; or a second call.
pub fn init(service: &'static str, config: &Config) -> Result<Telemetry, ConfigError> {
    let filter = EnvFilter::try_new(&config.rust_log).map_err(|e| ConfigError::invalid("RUST_LOG", e))?;
    let resource = Resource::builder()
        .with_service_name(service)
        .with_attribute(KeyValue::new("service.namespace", "waybill"))
        .build();
    let tracer = tracer_provider(config, resource.clone())?;
    let meter = meter_provider(resource)?;
    global::set_text_map_propagator(TraceContextPropagator::new());
    global::set_tracer_provider(tracer.clone());
    global::set_meter_provider(meter.clone());
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match config.log_format {
        LogFormat::Json => tracing_subscriber::fmt::layer().json().flatten_event(true).boxed(),
        LogFormat::Pretty => tracing_subscriber::fmt::layer().boxed(),
    };
    // A filter that decides for each event anew: with a static one, a foreign event that is asked for but never sent
    // (sqlx does that) leaves "disabled" behind on its thread, and the next line of ours is lost.
    let spans = tracing_opentelemetry::layer()
        .with_tracer(tracer.tracer("waybill"))
        .with_location(false)
        .with_threads(false)
        .with_filter(DynFilterFn::new(|metadata, _| is_ours(metadata.target())));
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(spans)
        .try_init()
        .map_err(|e| ConfigError::invalid("RUST_LOG", e))?;
    Ok(Telemetry { tracer, meter })
}

/// Spans of the exporter's own HTTP client would be exported again, for ever.
fn is_ours(target: &str) -> bool {
    !["hyper", "reqwest", "h2", "opentelemetry", "tower", "sqlx", "rdkafka", "librdkafka"]
        .iter()
        .any(|foreign| target.starts_with(foreign))
}

fn tracer_provider(config: &Config, resource: Resource) -> Result<SdkTracerProvider, ConfigError> {
    let ratio = config.otel_traces_sampler_arg;
    if !(0.0..=1.0).contains(&ratio) {
        return Err(ConfigError::invalid("OTEL_TRACES_SAMPLER_ARG", "it is not between 0 and 1"));
    }
    let builder = SdkTracerProvider::builder()
        .with_resource(resource)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))));
    let Some(endpoint) = config.otel_exporter_otlp_endpoint.as_deref().filter(|e| !e.is_empty()) else {
        return Ok(builder.build());
    };
    let invalid =
        |reason: &dyn std::fmt::Display| ConfigError::invalid("OTEL_EXPORTER_OTLP_ENDPOINT", reason);
    let url = reqwest::Url::parse(endpoint).map_err(|e| invalid(&e))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid(&"it is not an http or https URL"));
    }
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(EXPORT_TIMEOUT)
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .build()
        .map_err(|e| invalid(&e))?;
    Ok(builder.with_batch_exporter(exporter).build())
}

fn meter_provider(resource: Resource) -> Result<SdkMeterProvider, ConfigError> {
    let exporter = opentelemetry_prometheus::exporter()
        .with_registry(metrics::registry().clone())
        .scope_info_enabled(false)
        .build()
        .map_err(|e| ConfigError::invalid("metrics", e))?;
    Ok(SdkMeterProvider::builder().with_reader(exporter).with_resource(resource).build())
}

impl Telemetry {
    /// Sends what is left, bounded in time.
    pub async fn shutdown(self) {
        let flushed = tokio::task::spawn_blocking(move || {
            // The blocking client of the exporter must not run on a runtime thread.
            (self.tracer.shutdown_with_timeout(FLUSH), self.meter.shutdown_with_timeout(FLUSH))
        });
        match flushed.await {
            Ok((Ok(()), Ok(()))) => {}
            Ok((tracer, meter)) => tracing::warn!(?tracer, ?meter, "telemetry was not sent to its end"),
            Err(error) => tracing::warn!(%error, "telemetry was not sent to its end"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_spans_are_not_exported() {
        for target in
            ["hyper::proto", "reqwest::connect", "opentelemetry_sdk", "sqlx::query", "rdkafka::client"]
        {
            assert!(!is_ours(target), "{target}");
        }
        assert!(is_ours("waybill_service::http::frame") && is_ours("waybill_order::orders"));
    }
}
