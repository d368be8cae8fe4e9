//! One trace from the request to the consumer: the handler runs inside a span of the message's own trace.

use std::sync::Mutex;

use opentelemetry::trace::{SpanKind, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use sqlx::PgConnection;
use tracing_subscriber::layer::SubscriberExt;
use waybill_consumer::{BatchHandler, Failure, Handler, Message, Outcome, harness::Harness};
use waybill_event::{OrderEvent, TraceContext};

use crate::support::{GROUP, database, order};

const TRACES: [&str; 2] = ["4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"];
const PARENT: &str = "00f067aa0ba902b7";

/// Remembers the context that an outbox would store.
#[derive(Default)]
struct Seen(Mutex<Vec<Option<TraceContext>>>);

impl Handler for Seen {
    type Event = OrderEvent;

    async fn handle(&self, _: &mut PgConnection, _: &Message<OrderEvent>) -> Result<(), Failure> {
        self.0.lock().unwrap().push(TraceContext::current());
        Ok(())
    }
}

impl BatchHandler for Seen {
    type Event = OrderEvent;

    async fn handle(
        &self,
        _: &mut PgConnection,
        messages: &[Message<OrderEvent>],
    ) -> Result<Vec<Outcome>, Failure> {
        Ok(messages.iter().map(|_| Outcome::Done).collect())
    }
}

fn message(trace: &str) -> Message<OrderEvent> {
    let trace = TraceContext::parse(&format!("00-{trace}-{PARENT}-01"), None).unwrap();
    Message::new(order()).with_trace(trace)
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name)?;
    Some(found.value.as_str().into_owned())
}

struct Exported {
    provider: SdkTracerProvider,
    exporter: InMemorySpanExporter,
    _default: tracing::subscriber::DefaultGuard,
}

impl Exported {
    /// For this thread, which is the test's whole runtime.
    fn start() -> Self {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        Self { provider, exporter, _default: default }
    }

    fn spans(&self) -> Vec<SpanData> {
        self.provider.force_flush().unwrap();
        let mut spans = self.exporter.get_finished_spans().unwrap();
        spans.retain(|span| span.name.starts_with("process "));
        spans
    }
}

#[tokio::test]
async fn the_handler_runs_in_a_child_span_of_the_messages_own_trace() {
    let (database, exported, seen) = (database().await, Exported::start(), Seen::default());
    let messages = vec![message(TRACES[0])];
    let id = messages[0].id.to_string();
    Harness::new(database.pool.clone(), GROUP).deliver(&seen, messages).await.unwrap();
    let current = seen.0.lock().unwrap()[0].clone().unwrap();
    assert_eq!(current.trace_id(), TRACES[0]);
    let spans = exported.spans();
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((span.name.as_ref(), &span.span_kind), ("process orders.v1", &SpanKind::Consumer));
    assert_eq!(span.parent_span_id.to_string(), PARENT);
    assert!(current.traceparent.contains(&span.span_context.span_id().to_string()));
    for (name, value) in [
        ("messaging.system", "kafka"),
        ("messaging.operation.name", "process"),
        ("messaging.destination.name", "orders.v1"),
        ("messaging.destination.partition.id", "0"),
        ("messaging.kafka.offset", "0"),
        ("messaging.message.id", &id),
        ("messaging.consumer.group.name", GROUP),
    ] {
        assert_eq!(attribute(span, name).as_deref(), Some(value), "{name}");
    }
}

#[tokio::test]
async fn a_batch_has_a_span_per_message_and_one_that_links_to_them() {
    let (database, exported) = (database().await, Exported::start());
    let messages = TRACES.into_iter().map(message).collect();
    Harness::new(database.pool.clone(), GROUP).deliver_batch(&Seen::default(), messages).await.unwrap();
    let spans = exported.spans();
    let (batch, each): (Vec<_>, Vec<_>) =
        spans.iter().partition(|span| attribute(span, "messaging.batch.message_count").is_some());
    let traces: Vec<_> = each.iter().map(|span| span.span_context.trace_id().to_string()).collect();
    assert!(TRACES.iter().all(|trace| traces.contains(&(*trace).to_owned())), "{traces:?}");
    assert_eq!((batch.len(), each.len(), batch[0].links.links.len()), (1, 2, 2));
}
