//! Prometheus endpoint over the OpenTelemetry instruments of the process.

use std::sync::LazyLock;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus::{Encoder, Registry, TextEncoder};

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::new);

/// Duration of HTTP requests by method, route and status, in seconds (OpenTelemetry's name for it).
pub const HTTP_REQUEST_DURATION: &str = "http.server.request.duration";

/// The registry that the process's meter provider writes to.
pub fn registry() -> &'static Registry {
    &REGISTRY
}

/// `GET /metrics` in Prometheus' text format.
pub fn router() -> Router {
    Router::new().route("/metrics", get(export))
}

async fn export() -> impl IntoResponse {
    let encoder = TextEncoder::new();
    let mut text = Vec::new();
    // Families that cannot be written are left out; the rest is still worth having.
    if let Err(error) = encoder.encode(&REGISTRY.gather(), &mut text) {
        tracing::warn!(error = &error as &dyn std::error::Error, "metrics are incomplete");
    }
    ([(CONTENT_TYPE, encoder.format_type().to_owned())], text)
}
