//! The frame around every route: request id, trace, limits, time-out, panics, and the one place where failures are
//! logged.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use opentelemetry::metrics::Histogram;
use opentelemetry::{KeyValue, global};
use tower_http::catch_panic::CatchPanicLayer;
use tracing::{Instrument, Span, field, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use uuid::Uuid;

use super::error::ApiError;
use super::json::too_large;
use crate::metrics::HTTP_REQUEST_DURATION;

/// Largest body, in bytes, where nothing else is said.
pub const BODY_LIMIT: usize = 64 * 1024;
/// Longest run of a request; above every bound inside it (acquire 3 s, statement 5 s).
const TIMEOUT: Duration = Duration::from_secs(30);
const REQUEST_ID: &str = "x-request-id";

static DURATION: LazyLock<Histogram<f64>> = LazyLock::new(|| {
    global::meter("waybill.service")
        .f64_histogram(HTTP_REQUEST_DURATION)
        .with_unit("s")
        .with_description("Duration of HTTP requests")
        .with_boundaries(vec![
            0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        ])
        .build()
});

/// Largest body of one route, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyLimit(pub(super) usize);

/// Puts the frame around a service's routes. Unknown routes and methods answer as problems too.
pub fn frame(routes: Router) -> Router {
    frame_with(routes, &[])
}

/// As [`frame`], with another largest body for some routes, each given as it was registered.
pub fn frame_with(routes: Router, bodies: &'static [(&'static str, usize)]) -> Router {
    routes
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
            ApiError::internal(std::io::Error::other("a handler panicked")).into_response()
        }))
        .layer(from_fn(move |request, next| traced(bodies, request, next)))
}

async fn not_found() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not-found", "there is nothing at this path")
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "this path does not take this method")
}

async fn traced(bodies: &[(&str, usize)], mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str).to_owned();
    let request_id = request_id(request.headers());
    let span = span(&request, &route, &request_id);
    let length = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    let limit = bodies.iter().find(|(of, _)| *of == route).map_or(BODY_LIMIT, |(_, limit)| *limit);
    DefaultBodyLimit::max(limit).apply(&mut request);
    request.extensions_mut().insert(BodyLimit(limit));
    let mut response = async {
        // Refused before a byte of it is read.
        if length.is_some_and(|length| length > limit) {
            return too_large(limit).into_response();
        }
        match tokio::time::timeout(TIMEOUT, next.run(request)).await {
            Ok(response) => response,
            Err(_) => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "the request took too long")
                    .retry_after(Duration::from_secs(1))
                    .source(std::io::Error::from(std::io::ErrorKind::TimedOut))
                    .into_response()
            }
        }
    }
    .instrument(span.clone())
    .await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let _entered = span.enter();
        log(&error, &request_id);
        let body = error.body(Some(&request_id));
        response.headers_mut().remove(CONTENT_LENGTH);
        *response.body_mut() = body.into();
    }
    let status = response.status();
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    count(method.to_string(), route, status, started);
    name(&mut response, &request_id);
    response
}

/// An answer to what is no request, because its head cannot be read, and its body: counted and logged as any other. The
/// method is the one that OpenTelemetry has for such.
pub(super) fn refused(error: &ApiError) -> (Response, Vec<u8>) {
    let request_id = Uuid::now_v7().to_string();
    log(error, &request_id);
    count("_OTHER".to_owned(), String::new(), error.status(), Instant::now());
    let mut response = error.clone().into_response();
    name(&mut response, &request_id);
    (response, error.body(Some(&request_id)))
}

fn count(method: String, route: String, status: StatusCode, started: Instant) {
    let of = [
        KeyValue::new("http.request.method", method),
        KeyValue::new("http.route", route),
        KeyValue::new("http.response.status_code", i64::from(status.as_u16())),
    ];
    DURATION.record(started.elapsed().as_secs_f64(), &of);
}

fn name(response: &mut Response, request_id: &str) {
    if let Ok(value) = HeaderValue::from_str(request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
}

/// The caller's id when it is a short plain word, else one of ours.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|v| v.to_str().ok());
    let plain = |id: &&str| {
        !id.is_empty() && id.len() <= 64 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    given.filter(plain).map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

fn span(request: &Request, route: &str, request_id: &str) -> Span {
    let span = info_span!(
        "request",
        otel.name = format!("{} {route}", request.method()),
        otel.kind = "server",
        otel.status_code = field::Empty,
        http.request.method = %request.method(),
        http.route = route,
        url.path = request.uri().path(),
        http.response.status_code = field::Empty,
        request_id,
    );
    let context = global::get_text_map_propagator(|p| p.extract(&Carrier(request.headers())));
    // Before the span is entered: afterwards its trace id is fixed. Without a subscriber there is nothing to set.
    drop(span.set_parent(context));
    span
}

struct Carrier<'a>(&'a HeaderMap);

impl opentelemetry::propagation::Extractor for Carrier<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(axum::http::HeaderName::as_str).collect()
    }
}

fn log(error: &ApiError, request_id: &str) {
    let cause = error.causes();
    let (code, status) = (error.code(), error.status().as_u16());
    // A 5xx without a cause is a refusal under load, and too many to log each; who refuses warns.
    if error.status().is_server_error() && cause.is_some() {
        tracing::error!(code, status, request_id, cause, "request failed");
    } else {
        tracing::debug!(code, status, request_id, cause, "request refused");
    }
}
