//! W3C trace context as it lies in headers and in the outbox: two strings that are passed on, never rewritten.

use std::str::FromStr;

use opentelemetry::{
    Context, SpanId, TraceFlags, TraceId,
    trace::{SpanContext, TraceContextExt, TraceState},
};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{Headers, headers};

/// A `traceparent` and its `tracestate`. Made by this module it is valid by the W3C rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// As received, for example `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`.
    pub traceparent: String,
    /// As received; `None` when absent, empty or not valid.
    pub tracestate: Option<String>,
}

impl TraceContext {
    /// The context of the current span; `None` when no valid one is open (tracing off, or no OpenTelemetry layer).
    #[must_use]
    pub fn current() -> Option<Self> {
        let context = tracing::Span::current().context();
        let span = context.span();
        let span = span.span_context();
        if !span.is_valid() {
            return None;
        }
        let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags().to_u8() & 1);
        Some(Self {
            traceparent: format!("00-{trace}-{id}-{flags:02x}"),
            tracestate: Some(span.trace_state().header()).filter(|state| !state.is_empty()),
        })
    }

    /// Reads the headers of a message. A `tracestate` without a valid `traceparent` means nothing: `None`.
    #[must_use]
    pub fn from_headers(headers: &Headers) -> Option<Self> {
        Self::parse(headers.text(headers::TRACEPARENT)?, headers.text(headers::TRACESTATE))
    }

    /// Reads stored strings. `None` when `traceparent` is not valid; a bad `tracestate` alone is dropped.
    #[must_use]
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        split(traceparent)?;
        let tracestate = tracestate.filter(|state| !state.is_empty() && TraceState::from_str(state).is_ok());
        Some(Self { traceparent: traceparent.to_owned(), tracestate: tracestate.map(str::to_owned) })
    }

    /// Appends both headers, replacing any of their names. For new messages only: a received trace context stays.
    pub fn write(&self, headers: &mut Headers) {
        headers.set(headers::TRACEPARENT, self.traceparent.as_str());
        match &self.tracestate {
            Some(state) => headers.set(headers::TRACESTATE, state.as_str()),
            None => headers.remove(headers::TRACESTATE),
        }
    }

    /// The span it names, as a remote one; an invalid [`SpanContext`] if the fields were filled with nonsense.
    #[must_use]
    pub fn span_context(&self) -> SpanContext {
        let Some((trace, span, flags)) = split(&self.traceparent) else {
            return SpanContext::empty_context();
        };
        let state = self.tracestate.as_deref().and_then(|state| TraceState::from_str(state).ok());
        SpanContext::new(trace, span, flags, true, state.unwrap_or_default())
    }

    /// A context whose remote parent is this span, for `Span::set_parent` (before the span is entered).
    #[must_use]
    pub fn to_context(&self) -> Context {
        Context::new().with_remote_span_context(self.span_context())
    }

    /// The 32 hex digits of the trace id, empty if the fields were filled with nonsense.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        if split(&self.traceparent).is_some() { &self.traceparent[3..35] } else { "" }
    }
}

/// Checks by W3C Trace Context level 1, §3.2: version 00 has exactly 55 characters; a later version may go on after
/// a dash; ff is forbidden; digits are lower case; ids are not all zero.
fn split(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (known, rest) = text.split_at_checked(55)?;
    let mut parts = known.split('-');
    let (version, trace, span, flags) =
        (hex(parts.next(), 2)?, hex(parts.next(), 32)?, hex(parts.next(), 16)?, hex(parts.next(), 2)?);
    let later = version != "00" && version != "ff" && rest.starts_with('-');
    if parts.next().is_some() || version == "ff" || !(rest.is_empty() || later) {
        return None;
    }
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    // Only the sampled bit is defined; the others must be ignored.
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()? & 1);
    (trace != TraceId::INVALID && span != SpanId::INVALID).then_some((trace, span, flags))
}

fn hex(part: Option<&str>, len: usize) -> Option<&str> {
    part.filter(|p| p.len() == len && p.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}
