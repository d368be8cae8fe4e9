//! What a message brings about stays in that message's trace, also in a batch of many traces.

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use uuid::Uuid;
use waybill_consumer::Message;
use waybill_event::TraceContext;

use crate::histories::on_delivery;
use crate::ledger::Fixture;

#[tokio::test]
async fn each_published_event_continues_the_trace_of_its_order_event() {
    let provider = SdkTracerProvider::builder().build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    // For the whole binary: a subscriber of one thread races with the others for the cached interest in each span.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))
        .expect("the only one");
    let fixture = Fixture::new().await;
    let mut expected = Vec::new();
    let mut messages = Vec::new();
    for number in 1..=3 {
        let order = on_delivery(Uuid::now_v7(), 10_000);
        let trace = format!("{number:032x}");
        let parent = TraceContext::parse(&format!("00-{trace}-00f067aa0ba902b7-01"), None).expect("valid");
        expected.push((order.order_id.to_string(), trace));
        messages.push(Message::new(order).with_trace(parent));
    }
    // One alone, two in a batch.
    let last = messages.split_off(2);
    for batch in [messages, last] {
        fixture.harness.deliver_batch(&fixture.handler, batch).await.expect("database");
    }
    let published: Vec<(String, String)> = sqlx::query_as(
        "select aggregateid, substr(traceparent, 4, 32) from messaging.outbox order by traceparent",
    )
    .fetch_all(fixture.pool())
    .await
    .expect("outbox");
    assert_eq!(published, expected);
}
