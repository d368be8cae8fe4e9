//! Spans of attempts.

use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::Running;

/// `task <kind>`: a child of the trace of who enqueued the task, so that what the handler does stays in the trace that
/// began with the request.
pub(crate) fn attempt(task: &Running) -> Span {
    let span = tracing::info_span!(
        "task",
        otel.name = format!("task {}", task.kind),
        otel.kind = "consumer",
        otel.status_code = tracing::field::Empty,
        error.r#type = tracing::field::Empty,
        waybill.task.id = %task.id,
        waybill.task.kind = task.kind,
        waybill.task.key = task.key,
        waybill.attempt = task.attempt,
    );
    if let Some(trace) = &task.trace {
        // Before the span is entered: later it would be refused. Without a tracing layer there is nothing to set.
        let _ = span.set_parent(trace.to_context());
    }
    span
}

pub(crate) fn failed(span: &Span, kind: &'static str) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", kind);
}
