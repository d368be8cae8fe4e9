//! Bodies that tell the connection's watch where they are.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;

use super::guard::{Alarm, Turn};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request was not there in time.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the body was not sent in time")]
pub(super) struct BodyTimeout;

/// A request's body with a deadline.
#[derive(Debug)]
pub(super) struct RequestBody<B: HttpBody> {
    body: B,
    turn: Arc<Turn>,
    until: Instant,
    alarm: Alarm,
    ended: bool,
}

impl<B: HttpBody> RequestBody<B> {
    pub(super) fn new(body: B, turn: Arc<Turn>, time: Duration) -> Self {
        let ended = body.is_end_stream();
        Self { body, turn, until: Instant::now() + time, alarm: Alarm::default(), ended }
    }
}

impl<B> HttpBody for RequestBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.body).poll_frame(cx).map_err(Into::into);
        match &polled {
            // One byte at a time is never pending for long: the deadline counts then too.
            Poll::Ready(Some(_)) if Instant::now() < this.until => polled,
            Poll::Ready(None) => {
                this.ended = true;
                polled
            }
            _ => this.alarm.poll(this.until, cx).map(|()| Some(Err(BodyTimeout.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: HttpBody> Drop for RequestBody<B> {
    fn drop(&mut self) {
        if !self.ended && !self.body.is_end_stream() {
            self.turn.left_unread();
        }
    }
}

/// An answer's body, whose end begins the client's turn.
#[derive(Debug)]
pub(super) struct ResponseBody {
    body: Body,
    turn: Arc<Turn>,
}

impl ResponseBody {
    pub(super) fn new(body: Body, turn: Arc<Turn>) -> Self {
        Self { body, turn }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.turn.answered();
    }
}
