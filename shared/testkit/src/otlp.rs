//! A receiver of traces: a real OTLP/HTTP server that keeps what it is sent.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;

/// One span as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// `service.name` of the sender.
    pub service: String,
    /// Name.
    pub name: String,
    /// Trace id, lower-case hex.
    pub trace_id: String,
    /// Span id, lower-case hex.
    pub span_id: String,
    /// Parent's span id, empty for a root.
    pub parent_id: String,
    /// Kind as OTLP numbers it: 2 server, 3 client, 4 producer, 5 consumer.
    pub kind: i32,
}

/// The server; it ends with this value.
#[derive(Debug)]
pub struct Receiver {
    /// For `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub endpoint: String,
    spans: Arc<Mutex<Vec<Span>>>,
    server: tokio::task::JoinHandle<()>,
}

impl Receiver {
    /// Starts on a free port of the loopback.
    ///
    /// # Panics
    /// When no port can be had.
    pub async fn start() -> Self {
        let spans = Arc::new(Mutex::new(Vec::new()));
        let router = Router::new().route("/v1/traces", post(receive)).with_state(spans.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let server = tokio::spawn(async move { axum::serve(listener, router).await.expect("serves") });
        Self { endpoint, spans, server }
    }

    /// Every span that has arrived.
    ///
    /// # Panics
    /// Never, unless the server panicked.
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().expect("not poisoned").clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn receive(State(spans): State<Arc<Mutex<Vec<Span>>>>, body: Bytes) -> StatusCode {
    let Ok(request) = ExportTraceServiceRequest::decode(body) else { return StatusCode::BAD_REQUEST };
    let mut kept = spans.lock().expect("not poisoned");
    for resource in request.resource_spans {
        let attributes = resource.resource.map(|r| r.attributes).unwrap_or_default();
        let service = attributes.iter().find(|a| a.key == "service.name").and_then(text).unwrap_or_default();
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            kept.push(Span {
                service: service.clone(),
                name: span.name,
                trace_id: hex(&span.trace_id),
                span_id: hex(&span.span_id),
                parent_id: hex(&span.parent_span_id),
                kind: span.kind,
            });
        }
    }
    StatusCode::OK
}

fn text(attribute: &opentelemetry_proto::tonic::common::v1::KeyValue) -> Option<String> {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    match attribute.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
