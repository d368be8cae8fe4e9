//! Each attempt continues the trace in which its task was enqueued.

use futures::FutureExt;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use serde_json::json;
use tracing_subscriber::layer::SubscriberExt;
use waybill_event::TraceContext;
use waybill_task::{New, Stop};

use crate::support::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[tokio::test]
async fn every_attempt_is_a_child_of_the_trace_that_enqueued() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    // For the whole process: tests tell their spans apart by trace ids of their own.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
    let (database, notes) = (database().await, Notes::default());
    let told = notes.clone();
    let handler = play(move |task, _| {
        let told = told.clone();
        async move {
            told.add(TraceContext::current().map(|trace| trace.trace_id().to_owned()));
            if task.attempt == 1 { Err(Stop::retry(anyhow::anyhow!("again"))) } else { Ok(()) }
        }
        .boxed()
    });
    let mut new = New::of(KIND, json!({}));
    new.trace = TraceContext::parse(&format!("00-{TRACE}-{PARENT}-01"), Some("a=b"));
    let id = enqueue_one(&database.pool, new).await;
    let worker = Beside::start(&database.pool, settings(), handler);
    until(&database.pool, id, "done").await;
    worker.stop().await;
    assert_eq!(notes.all(), [json!(TRACE), json!(TRACE)]);
    provider.force_flush().unwrap();
    let mut spans = exporter.get_finished_spans().unwrap();
    spans.retain(|span| span.span_context.trace_id().to_string() == TRACE && span.name == "task work");
    assert_eq!(spans.len(), 2);
    for span in spans {
        assert_eq!(span.parent_span_id.to_string(), PARENT);
    }
}
