//! What is refused before there is a request: hyper cannot read the head.
//!
//! hyper answers such a head by itself, with a bare status, and no hook lets it say more. So its own answer is kept from
//! the socket ([`Muted`]), and once the connection has ended with the error, the server writes a problem instead, which
//! is counted and logged as those of the frame are.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::header::{CONNECTION, CONTENT_LENGTH, DATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::error::ApiError;
use super::frame;
use super::guard::Turn;
use super::limits::HEADER_LIMIT;

/// Headers that hyper reads of one request.
const HEADERS: usize = 100;

/// A socket that takes from hyper the answers of the service only.
///
/// hyper flushes once everything that it has written is on the socket. What it writes after the flush that followed the
/// end of an answer, and before the next request is handed over, can be no part of any answer: it is hyper's own.
#[derive(Debug)]
pub(super) struct Muted<S> {
    socket: S,
    turn: Arc<Turn>,
    muted: bool,
}

impl<S: AsyncWrite + Unpin> Muted<S> {
    pub(super) fn new(socket: S, turn: Arc<Turn>) -> Self {
        Self { socket, turn, muted: false }
    }

    /// Answers what hyper could not read, and closes. The one case in which hyper's bare answer is already on its way: the
    /// head came behind a request whose answer the client had not taken yet. Then this only counts and logs.
    pub(super) async fn refuse(mut self, error: &hyper::Error) -> std::io::Result<()> {
        let unanswered = self.muted || (error.is_parse_version_h2() && !self.turn.is_answering());
        let refused = frame::refused(&problem(error));
        // Closed with bytes that nobody has read, the socket would be reset, and the answer with it.
        self.turn.left_unread();
        if unanswered {
            self.socket.write_all(&bytes(refused)).await?;
        }
        self.socket.shutdown().await
    }
}

fn problem(error: &hyper::Error) -> ApiError {
    if error.is_parse_too_large() {
        let detail = format!(
            "the request line and the headers must not be larger than {HEADER_LIMIT} bytes, nor more than {HEADERS} headers"
        );
        return ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head-too-large", detail);
    }
    let detail = format!("the head is not one of HTTP/1.1: {error}");
    ApiError::new(StatusCode::BAD_REQUEST, "invalid-request", detail)
}

/// An answer as it is sent.
fn bytes(refused: (Response, Vec<u8>)) -> Vec<u8> {
    let (mut response, body) = refused;
    let status = response.status();
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    let now = chrono::Utc::now().format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    headers.extend(HeaderValue::from_str(&now).ok().map(|now| (DATE, now)));
    let reason = status.canonical_reason().unwrap_or_default();
    let mut bytes = format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).into_bytes();
    for (name, value) in headers.iter() {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            bytes.extend_from_slice(part);
        }
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend(body);
    bytes
}

impl<S: AsyncRead + Unpin> AsyncRead for Muted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Muted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        if self.turn.is_answering() {
            return Pin::new(&mut self.socket).poll_write(cx, bytes);
        }
        self.muted = true;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        if self.turn.is_answering() {
            return Pin::new(&mut self.socket).poll_write_vectored(cx, bytes);
        }
        self.muted = true;
        Poll::Ready(Ok(bytes.iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.turn.flushed();
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
