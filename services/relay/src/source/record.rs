//! A row as a Kafka record: its headers, and its span.

use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::{Span, SpanBuilder, SpanKind, Status, Tracer};
use opentelemetry::{KeyValue, global};
use rdkafka::message::{Header, OwnedHeaders};
use serde_json::Value;
use waybill_event::trace::TraceContext;
use waybill_event::{headers, time};

use super::row::Row;

/// Span of a record from its enqueuing to its acknowledgement.
pub(crate) type SendSpan = Box<global::BoxedSpan>;

/// Headers of a row's record: CloudEvents, trace context, then the free ones.
pub(crate) fn headers(row: &Row, ce_source: &str) -> OwnedHeaders {
    const OWN: usize = 9;
    let free = row.headers.as_ref().and_then(Value::as_object);
    // Headers are 60 % of a record's cost in librdkafka: allocated once, few, short.
    let list = OwnedHeaders::new_with_capacity(OWN + free.map_or(0, serde_json::Map::len));
    let (id, time) = (row.id.id.hyphenated().to_string(), time::ce_time(row.created_at));
    let mut list = add(list, headers::CE_ID, &id);
    list = add(list, headers::CE_TYPE, &row.r#type);
    list = add(list, headers::CE_SOURCE, ce_source);
    list = add(list, headers::CE_SPECVERSION, headers::SPECVERSION);
    list = add(list, headers::CE_TIME, &time);
    list = add(list, headers::CE_SUBJECT, &row.key.key);
    list = add(list, headers::CONTENT_TYPE, headers::AVRO);
    // Rule: the trace context is the row's own, byte for byte. The relay's span is a child of it and nobody's
    // parent, so that every attempt, retry and replay hangs below the transaction that wrote the event.
    if let Some(traceparent) = &row.traceparent {
        list = add(list, headers::TRACEPARENT, traceparent);
    }
    if let Some(tracestate) = &row.tracestate {
        list = add(list, headers::TRACESTATE, tracestate);
    }
    for (name, value) in free.into_iter().flatten() {
        list = match value {
            Value::String(text) => add(list, name, text),
            Value::Null => list.insert(Header::<&str> { key: name, value: None }),
            other => add(list, name, &other.to_string()),
        };
    }
    list
}

fn add(list: OwnedHeaders, key: &str, value: &str) -> OwnedHeaders {
    list.insert(Header { key, value: Some(value) })
}

/// Starts the `send` span of a row that belongs to a sampled trace.
pub(crate) fn span(tracer: &BoxedTracer, row: &Row) -> Option<SendSpan> {
    let trace = TraceContext::parse(row.traceparent.as_deref()?, row.tracestate.as_deref())?;
    if !trace.span_context().is_sampled() {
        return None;
    }
    let span = SpanBuilder::from_name(format!("send {}", row.key.topic))
        .with_kind(SpanKind::Producer)
        .with_attributes([
            KeyValue::new("messaging.system", "kafka"),
            KeyValue::new("messaging.operation.name", "send"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.destination.name", row.key.topic.clone()),
            KeyValue::new("messaging.kafka.message.key", row.key.key.clone()),
            KeyValue::new("messaging.message.id", row.id.id.to_string()),
        ]);
    Some(Box::new(tracer.build_with_context(span, &trace.to_context())))
}

/// Ends a record's span with where it lies, or why it does not.
pub(crate) fn end(span: Option<SendSpan>, outcome: Result<(i32, i64), &str>) {
    let Some(mut span) = span else { return };
    match outcome {
        Ok((partition, offset)) => {
            span.set_attribute(KeyValue::new("messaging.destination.partition.id", partition.to_string()));
            span.set_attribute(KeyValue::new("messaging.kafka.offset", offset));
        }
        Err(error) => {
            span.set_attribute(KeyValue::new("error.type", error.to_owned()));
            span.set_status(Status::error(error.to_owned()));
        }
    }
    span.end();
}
