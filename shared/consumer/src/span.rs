//! Spans of handling, by OpenTelemetry's messaging conventions.

use opentelemetry::trace::TraceContextExt;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use waybill_event::{TraceContext, headers};

use crate::{Failure, Message};

/// `process <topic>` of one message: a child of the message's own trace context, so that what the handler appends to
/// an outbox stays in the trace that began with the request.
pub(crate) fn process<E>(message: &Message<E>, group: &str) -> Span {
    let span = tracing::info_span!(
        "process",
        otel.name = format!("process {}", message.topic()),
        otel.kind = "consumer",
        otel.status_code = tracing::field::Empty,
        error.r#type = tracing::field::Empty,
        messaging.system = "kafka",
        messaging.operation.name = "process",
        messaging.operation.type = "process",
        messaging.destination.name = message.topic(),
        messaging.destination.partition.id = %message.partition(),
        messaging.kafka.offset = message.offset(),
        messaging.kafka.message.key = message.key_text(),
        messaging.message.id = %message.id,
        messaging.consumer.group.name = group,
        waybill.attempt = message.attempt,
    );
    if let Some(trace) = &message.trace {
        // Before the span is entered: later it would be refused. Without a tracing layer there is nothing to set.
        let _ = span.set_parent(trace.to_context());
    }
    // Of a parked message, else on a later hop.
    let hop = || message.headers().text(headers::LAST_TRACEPARENT);
    let last = message.last_attempt.as_deref().or_else(hop);
    if let Some(last) = last.and_then(|last| TraceContext::parse(last, None)) {
        span.add_link(last.to_context().span().span_context().clone());
    }
    span
}

/// `process <topic>` of a whole batch: its messages come from many traces, so it links to their spans.
pub(crate) fn process_batch(topic: &str, group: &str, each: &[Span]) -> Span {
    let span = tracing::info_span!(
        "process",
        otel.name = format!("process {topic}"),
        otel.kind = "consumer",
        otel.status_code = tracing::field::Empty,
        error.r#type = tracing::field::Empty,
        messaging.system = "kafka",
        messaging.operation.name = "process",
        messaging.operation.type = "process",
        messaging.destination.name = topic,
        messaging.batch.message_count = each.len(),
        messaging.consumer.group.name = group,
    );
    for message in each {
        let context = message.context().span().span_context().clone();
        if context.is_valid() {
            span.add_link(context);
        }
    }
    span
}

pub(crate) fn failed(span: &Span, failure: &Failure) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", failure.code());
}
