//! W3C trace context: what is accepted, and that a span's context survives the way through headers.

use opentelemetry::trace::{TraceContextExt, TracerProvider};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;
use waybill_event::{Header, Headers, TraceContext};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn traceparent_by_the_rules() {
    for (text, valid) in [
        (VALID, true),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", true),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff", true),
        ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", true),
        ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes", true),
        ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.what-comes", false),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-", false),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes", false),
        ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", false),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", false),
        ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", false),
        ("00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01", false),
        ("00-4bf92f3577b34da6a3ce929d0e0e47366-00f067aa0ba902b7-1", false),
        ("00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01", false),
        ("0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
        ("00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0", false),
        (" 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
        ("00-찻잔92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
        ("", false),
        ("---", false),
    ] {
        assert_eq!(TraceContext::parse(text, None).is_some(), valid, "{text}");
    }
}

#[test]
fn a_bad_tracestate_is_dropped_alone_and_never_stands_alone() {
    let state = |text| TraceContext::parse(VALID, text).unwrap().tracestate;
    assert_eq!(state(Some("a=1,b=2")).as_deref(), Some("a=1,b=2"));
    assert_eq!(state(Some("")), None);
    assert_eq!(state(Some("no key")), None);
    assert_eq!(TraceContext::parse("00-bad", Some("a=1")), None);
}

#[test]
fn it_is_read_from_headers_and_written_back_unchanged() {
    let headers: Headers =
        [Header::new("TraceParent", VALID), Header::new("tracestate", "a=1")].into_iter().collect();
    let context = TraceContext::from_headers(&headers).unwrap();
    let mut written = Headers::new();
    context.write(&mut written);
    assert_eq!(written.text("traceparent"), Some(VALID));
    assert_eq!(written.text("tracestate"), Some("a=1"));
    assert_eq!(context.trace_id(), TRACE);
    let only_state: Headers = [Header::new("tracestate", "a=1")].into_iter().collect();
    assert_eq!(TraceContext::from_headers(&only_state), None);
}

#[test]
fn as_a_context_it_is_a_remote_parent() {
    let context = TraceContext::parse(VALID, Some("a=1")).unwrap().to_context();
    let span = context.span();
    let span = span.span_context();
    assert!(span.is_remote() && span.is_sampled());
    assert_eq!(span.trace_id().to_string(), TRACE);
    assert_eq!(span.trace_state().get("a"), Some("1"));
}

#[test]
fn fields_filled_with_nonsense_give_an_invalid_span_and_no_panic() {
    for text in ["", "é", "00-xyz", &"é".repeat(40)] {
        let context = TraceContext { traceparent: text.to_owned(), tracestate: Some("\n".into()) };
        assert!(!context.span_context().is_valid());
        assert_eq!(context.trace_id(), "");
    }
}

#[test]
fn the_current_span_goes_through_headers_into_a_child() {
    let provider = opentelemetry_sdk::trace::SdkTracerProvider::builder().build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        assert_eq!(TraceContext::current(), None, "no span is open");
        let sent = tracing::info_span!("send").in_scope(TraceContext::current).unwrap();
        assert_eq!(TraceContext::parse(&sent.traceparent, None), Some(sent.clone()));
        assert!(sent.traceparent.ends_with("-01"));

        let process = tracing::info_span!("process");
        process.set_parent(sent.to_context()).unwrap();
        let processed = process.in_scope(TraceContext::current).unwrap();
        assert_eq!(processed.trace_id(), sent.trace_id());
        assert_ne!(processed.traceparent, sent.traceparent);
    });
}

#[test]
fn without_telemetry_there_is_no_context() {
    assert_eq!(tracing::info_span!("alone").in_scope(TraceContext::current), None);
}
