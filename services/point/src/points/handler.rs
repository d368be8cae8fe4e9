//! Order events become ledger entries.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use opentelemetry::global;
use opentelemetry::metrics::Counter;
use sqlx::PgConnection;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use waybill_consumer::{BatchHandler, Failure, Message, Outcome};
use waybill_event::{MessageId, OrderEvent};
use waybill_outbox::Outbox;

use super::Error;
use super::apply::{State, apply};

/// Points earned, counted after the commit.
pub const POINTS_EARNED: &str = "waybill.points.earned";
/// Points taken back, counted after the commit.
pub const POINTS_EARN_REVERSED: &str = "waybill.points.earn_reversed";

/// Results that wait for their commit. A batch that was rolled back and given up leaves some behind; beyond this
/// many all are dropped, and the counters miss those still on their way.
const PENDING_MAX: usize = 100_000;

static EARNED: LazyLock<Counter<u64>> = LazyLock::new(|| {
    let meter = global::meter("waybill.point");
    meter.u64_counter(POINTS_EARNED).with_unit("{point}").with_description("Points earned by orders").build()
});
static REVERSED: LazyLock<Counter<u64>> = LazyLock::new(|| {
    let meter = global::meter("waybill.point");
    meter
        .u64_counter(POINTS_EARN_REVERSED)
        .with_unit("{point}")
        .with_description("Earned points taken back")
        .build()
});

/// The point group's handler of `orders.v1`.
#[derive(Debug)]
pub struct MovePoints {
    outbox: Outbox,
    pending: Mutex<HashMap<MessageId, i64>>,
}

impl MovePoints {
    /// Publishes through this outbox.
    pub fn new(outbox: Outbox) -> Self {
        Self { outbox, pending: Mutex::default() }
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<MessageId, i64>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BatchHandler for MovePoints {
    type Event = OrderEvent;

    async fn handle(
        &self,
        tx: &mut PgConnection,
        messages: &[Message<OrderEvent>],
    ) -> Result<Vec<Outcome>, Failure> {
        let states: Vec<State<'_>> = messages
            .iter()
            .map(|message| State { event: &message.event, span: span(message, messages.len()) })
            .collect();
        let earned = apply(tx, &self.outbox, &states).await.map_err(failure)?;
        let mut pending = self.pending();
        if pending.len() + messages.len() > PENDING_MAX {
            pending.clear();
        }
        pending
            .extend(messages.iter().map(|message| message.id).zip(earned).filter(|(_, points)| *points != 0));
        Ok(messages.iter().map(|_| Outcome::Done).collect())
    }

    fn committed(&self, messages: &[Message<OrderEvent>]) {
        self.outbox.ring();
        let mut pending = self.pending();
        for points in messages.iter().filter_map(|message| pending.remove(&message.id)) {
            if points > 0 { &EARNED } else { &REVERSED }.add(points.unsigned_abs(), &[]);
        }
    }
}

/// What a constraint refuses is refused every time, and dies at once; what the database cannot do now is tried again.
fn failure(error: Error) -> Failure {
    match error {
        Error::Database(error) => Failure::from(error),
        error if error.is_permanent() => Failure::permanent(error),
        error => Failure::transient(error),
    }
}

/// A batch's own span stands for many traces; what one message brings about belongs to that message's. A message
/// that comes alone is already handled in its own.
fn span(message: &Message<OrderEvent>, of: usize) -> Span {
    let event = &message.event;
    let span = tracing::info_span!("apply order state", order_id = %event.order_id, version = event.version);
    if let Some(trace) = message.trace.as_ref().filter(|_| of > 1) {
        // Before the span is entered: later it would be refused. Without a tracing layer there is nothing to set.
        let _ = span.set_parent(trace.to_context());
    }
    span
}
