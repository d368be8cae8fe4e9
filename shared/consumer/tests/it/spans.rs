//! One trace from the request to the consumer: the handler runs inside a span of the message's own trace.

use std::sync::{LazyLock, Mutex};

use opentelemetry::trace::{SpanKind, Status, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use sqlx::PgConnection;
use tracing_subscriber::layer::SubscriberExt;
use waybill_consumer::{BatchHandler, Failure, Handler, Message, Outcome, Tx, harness::Harness};
use waybill_event::{OrderEvent, TraceContext, headers};

use crate::support::{GROUP, database, order};

const ALONE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const TOGETHER: [&str; 2] = ["0af7651916cd43dd8448eb211c80319c", "0af7651916cd43dd8448eb211c80319d"];
const REFUSED: [&str; 2] = ["1af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319d"];
const REPLAYED: &str = "2af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "00f067aa0ba902b7";

/// Remembers the context that an outbox would store.
#[derive(Default)]
struct Seen(Mutex<Vec<Option<TraceContext>>>);

impl Handler for Seen {
    type Event = OrderEvent;

    async fn handle(&self, _: &mut Tx<'_>, _: &Message<OrderEvent>) -> Result<(), Failure> {
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
        let outcome = |message: &Message<OrderEvent>| match message.headers().get("refuse") {
            Some(_) => Outcome::Permanent(anyhow::anyhow!("refused")),
            None => Outcome::Done,
        };
        Ok(messages.iter().map(outcome).collect())
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
}

/// For the whole process: a subscriber of one thread races with the other threads for the cached interest in a span.
/// Tests tell their spans apart by trace ids of their own.
static EXPORTED: LazyLock<Exported> = LazyLock::new(|| {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
    Exported { provider, exporter }
});

impl Exported {
    fn spans(&self) -> Vec<SpanData> {
        self.provider.force_flush().unwrap();
        let mut spans = self.exporter.get_finished_spans().unwrap();
        spans.retain(|span| span.name.starts_with("process "));
        spans
    }

    fn of(&self, trace: &str) -> Vec<SpanData> {
        let mut spans = self.spans();
        spans.retain(|span| span.span_context.trace_id().to_string() == trace);
        spans
    }
}

#[tokio::test]
async fn the_handler_runs_in_a_child_span_of_the_messages_own_trace() {
    let (exported, database, seen) = (&*EXPORTED, database().await, Seen::default());
    let messages = vec![message(ALONE)];
    let id = messages[0].id.to_string();
    Harness::new(database.pool.clone(), GROUP).deliver(&seen, messages).await.unwrap();
    let current = seen.0.lock().unwrap()[0].clone().unwrap();
    assert_eq!(current.trace_id(), ALONE);
    let spans = exported.of(ALONE);
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
async fn a_refused_message_of_a_batch_fails_its_own_span_alone() {
    let (exported, database) = (&*EXPORTED, database().await);
    let messages = vec![message(REFUSED[0]), message(REFUSED[1]).with_header("refuse", "1")];
    Harness::new(database.pool.clone(), GROUP).deliver_batch(&Seen::default(), messages).await.unwrap();
    let [fine, refused] = REFUSED.map(|trace| exported.of(trace).pop().unwrap());
    assert_eq!((&fine.status, attribute(&fine, "error.type")), (&Status::Unset, None));
    assert!(matches!(refused.status, Status::Error { .. }), "{:?}", refused.status);
    assert_eq!(attribute(&refused, "error.type").as_deref(), Some("handler"));
}

#[tokio::test]
async fn a_later_attempt_links_to_the_one_before() {
    let (exported, database) = (&*EXPORTED, database().await);
    let last = format!("00-{REPLAYED}-b7ad6b7169203331-01");
    let messages = vec![message(REPLAYED).with_header(headers::LAST_TRACEPARENT, last)];
    Harness::new(database.pool.clone(), GROUP).deliver(&Seen::default(), messages).await.unwrap();
    let span = exported.of(REPLAYED).pop().unwrap();
    assert_eq!(span.parent_span_id.to_string(), PARENT, "in the original trace");
    let links: Vec<_> = span.links.iter().map(|link| link.span_context.span_id().to_string()).collect();
    assert_eq!(links, ["b7ad6b7169203331"]);
}

#[tokio::test]
async fn a_batch_has_a_span_per_message_and_one_that_links_to_them() {
    let (exported, database) = (&*EXPORTED, database().await);
    let messages = TOGETHER.into_iter().map(message).collect();
    Harness::new(database.pool.clone(), GROUP).deliver_batch(&Seen::default(), messages).await.unwrap();
    let each: Vec<_> = TOGETHER.iter().flat_map(|trace| exported.of(trace)).collect();
    let linked: Vec<_> = each.iter().map(|span| span.span_context.span_id()).collect();
    let links =
        |span: &SpanData| span.links.iter().map(|link| link.span_context.span_id()).collect::<Vec<_>>();
    let batch = exported.spans().into_iter().find(|span| links(span) == linked).unwrap();
    assert_eq!(each.len(), 2);
    assert_eq!(attribute(&batch, "messaging.batch.message_count").as_deref(), Some("2"));
}
