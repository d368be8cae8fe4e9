//! The server under every route: HTTP/1.1 with every wait bounded.
//!
//! Not `axum::serve`: it can bound neither the time of a request's head nor that of an idle connection.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::body::{RequestBody, ResponseBody};
use super::guard::{Guarded, Turn};
use super::limits::{HEADER_LIMIT, Limits};
use super::refusal::Muted;

/// Read buffer of a connection at most, in bytes.
const BUFFER: usize = 2 * HEADER_LIMIT;
/// Pause after a failure to accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);
/// Least time between two warnings of one kind.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Serves until `shutdown` with the default [`Limits`]; see [`serve_within`].
///
/// # Errors
/// None today; a listener that fails is tried again.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    serve_within(listener, router, Limits::default(), shutdown).await
}

/// Serves within `limits` until `shutdown`: then takes no new connection, closes the idle ones, and lets the
/// requests that run end. The caller bounds that time; dropped, it ends all connections at once.
///
/// # Errors
/// None today; a listener that fails is tried again.
pub async fn serve_within(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let slots = Arc::new(Semaphore::new(limits.http_max_connections));
    let mut connections = JoinSet::new();
    let mut warnings = Warnings::default();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &slots, &mut warnings) => accepted,
        };
        let (stream, slot) = accepted;
        connections.spawn(serve_one(stream, router.clone(), limits.clone(), shutdown.clone(), slot));
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

#[derive(Debug, Default)]
struct Warnings {
    full: Option<Instant>,
    failed: Option<Instant>,
}

fn is_due(last: &mut Option<Instant>) -> bool {
    let due = last.is_none_or(|last| last.elapsed() >= WARN_EVERY);
    if due {
        *last = Some(Instant::now());
    }
    due
}

/// The next connection and its place among those allowed.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    warnings: &mut Warnings,
) -> (TcpStream, OwnedSemaphorePermit) {
    loop {
        if slots.available_permits() == 0 && is_due(&mut warnings.full) {
            tracing::warn!("all connections of HTTP_MAX_CONNECTIONS are open; new ones wait");
        }
        // The semaphore is never closed.
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else { std::future::pending().await };
        match listener.accept().await {
            Ok((stream, _)) => return (stream, slot),
            Err(error) => {
                if is_due(&mut warnings.failed) {
                    tracing::error!(%error, "a connection cannot be accepted");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_one(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
    _slot: OwnedSemaphorePermit,
) {
    // Answers are written whole; waiting for more only delays them. Without it they are still right.
    drop(stream.set_nodelay(true));
    let body_time = limits.http_body_timeout;
    let turn = Turn::new(limits);
    let io = TokioIo::new(Muted::new(Guarded::new(stream, Arc::clone(&turn)), Arc::clone(&turn)));
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        turn.busy();
        let (router, turn) = (router.clone(), Arc::clone(&turn));
        let answer = async move {
            let request = request.map(|body| Body::new(RequestBody::new(body, Arc::clone(&turn), body_time)));
            let response = router.oneshot(request).await?;
            Ok::<_, Infallible>(response.map(|body| ResponseBody::new(body, turn)))
        };
        // Without a shutdown of its own, hyper wants futures that can be moved.
        Box::pin(answer)
    });
    let mut connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_header_size(HEADER_LIMIT)
        .max_buf_size(BUFFER)
        .serve_connection(io, service);
    let ended = tokio::select! {
        ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => ended,
        () = shutdown.cancelled() => {
            std::pin::Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    let mut socket = connection.into_parts().io.into_inner();
    let closed = match ended {
        Ok(()) => socket.shutdown().await,
        Err(error) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "connection ended early");
            if error.is_parse() { socket.refuse(&error).await } else { Ok(()) }
        }
    };
    if let Err(error) = closed {
        tracing::debug!(error = &error as &dyn std::error::Error, "connection did not end well");
    }
}
