//! The watch over one connection: whose turn it is, and until when.
//!
//! hyper's own header time-out runs from the end of the last response, so it would cut off idle connections that
//! may stay; here idling and dribbling have deadlines of their own.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::limits::Limits;

/// Longest time that a client may take no byte of an answer.
const WRITE_STALL: Duration = Duration::from_secs(30);
/// Longest time that a client's bytes are read and thrown away after an answer that came before the end of its
/// request. Closing at once would reset the connection, and the client would lose the answer.
const LINGER: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing of a request is there.
    Waiting,
    /// A part of a request's head is there.
    Head,
    /// A request is carried out.
    Busy,
}

/// Whose turn it is on a connection; known to its socket, its bodies and its handler.
#[derive(Debug)]
pub(super) struct Turn {
    phase: Mutex<(Phase, Instant)>,
    /// The answer came before the end of the request's body.
    unread: AtomicBool,
    /// What is written belongs to the answer of a request.
    answering: AtomicBool,
    limits: Limits,
}

impl Turn {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let until = Instant::now() + limits.http_header_timeout;
        let (phase, unread, answering) = (Mutex::new((Phase::Waiting, until)), false.into(), false.into());
        Arc::new(Self { phase, unread, answering, limits })
    }

    /// A request's head is complete.
    pub(super) fn busy(&self) {
        self.unread.store(false, Ordering::Relaxed);
        self.answering.store(true, Ordering::Relaxed);
        self.set(Phase::Busy, self.limits.http_keep_alive);
    }

    /// The answer was handed over.
    pub(super) fn answered(&self) {
        self.set(Phase::Waiting, self.limits.http_keep_alive);
    }

    /// Nobody will read the rest of the request.
    pub(super) fn left_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// Everything that was written is on the socket.
    pub(super) fn flushed(&self) {
        if self.lock().0 != Phase::Busy {
            self.answering.store(false, Ordering::Relaxed);
        }
    }

    /// Whether a request is carried out, or its answer is not on the socket yet.
    pub(super) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed)
    }

    fn read(&self) {
        let mut phase = self.lock();
        if phase.0 == Phase::Waiting {
            // Of a fresh connection the time already runs.
            let until = Instant::now() + self.limits.http_header_timeout;
            *phase = (Phase::Head, phase.1.min(until));
        }
    }

    fn is_over(&self) -> bool {
        let (phase, until) = *self.lock();
        phase != Phase::Busy && until <= Instant::now()
    }

    /// When to look again: the deadline, or while a request is carried out the earliest deadline that can follow.
    fn look_at(&self) -> Instant {
        let mut phase = self.lock();
        if phase.0 == Phase::Busy && phase.1 <= Instant::now() {
            phase.1 = Instant::now() + self.limits.http_keep_alive;
        }
        phase.1
    }

    fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed) || self.lock().0 == Phase::Head
    }

    fn set(&self, phase: Phase, time: Duration) {
        *self.lock() = (phase, Instant::now() + time);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Phase, Instant)> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A timer that is made once it is needed.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Ready once `at` has passed.
    pub(super) fn poll(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(cx)
    }
}

/// A socket that fails once its client lets a deadline pass, and is closed so that the client can read the answer.
#[derive(Debug)]
pub(super) struct Guarded<S> {
    socket: S,
    turn: Arc<Turn>,
    reading: Alarm,
    writing: Alarm,
    write_until: Option<Instant>,
    linger_until: Option<Instant>,
    late: bool,
}

impl<S> Guarded<S> {
    pub(super) fn new(socket: S, turn: Arc<Turn>) -> Self {
        let (reading, writing) = (Alarm::default(), Alarm::default());
        Self { socket, turn, reading, writing, write_until: None, linger_until: None, late: false }
    }

    /// Fails when a write has been pending for too long.
    fn written<T>(
        &mut self,
        written: Poll<std::io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<std::io::Result<T>> {
        if written.is_ready() {
            self.write_until = None;
            return written;
        }
        let until = *self.write_until.get_or_insert_with(|| Instant::now() + WRITE_STALL);
        ready!(self.writing.poll(until, cx));
        self.late = true;
        Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let this = &mut *self;
        if let Poll::Ready(read) = Pin::new(&mut this.socket).poll_read(cx, buffer) {
            if buffer.filled().len() > before {
                this.turn.read();
                // Bytes may keep coming, one at a time: the deadline counts then too.
                if this.turn.is_over() {
                    this.late = true;
                    return Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()));
                }
            }
            return Poll::Ready(read);
        }
        // hyper does not read again after an answer when it has read in vain before. So a timer runs also while a request
        // is carried out: it wakes the connection, which then finds the deadline of its idling.
        while this.reading.poll(this.turn.look_at(), cx).is_ready() {
            if this.turn.is_over() {
                this.late = true;
                return Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()));
            }
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.written(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bytes);
        self.written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.written(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        let until = match this.linger_until {
            Some(until) => until,
            None => {
                ready!(Pin::new(&mut this.socket).poll_shutdown(cx))?;
                if this.late || !this.turn.has_unread() {
                    return Poll::Ready(Ok(()));
                }
                *this.linger_until.insert(Instant::now() + LINGER)
            }
        };
        let mut scratch = [0; 4096];
        loop {
            if this.reading.poll(until, cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut this.socket).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}
