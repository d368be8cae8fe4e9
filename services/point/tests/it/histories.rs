//! Orders to test with: single states, and walks through the order service's state machine.

use chrono::Utc;
use uuid::Uuid;
use waybill_event::order::{event_type, payment_method, status};
use waybill_event::{Attempt, OrderEvent};

/// What an order starts with.
pub(crate) fn placed(customer_id: Uuid, total: i64, method: &str) -> OrderEvent {
    let on_delivery = method == payment_method::ON_DELIVERY;
    OrderEvent {
        order_id: Uuid::now_v7(),
        version: 1,
        r#type: event_type::PLACED.to_owned(),
        status: if on_delivery { status::CONFIRMED } else { status::PENDING_PAYMENT }.to_owned(),
        customer_id,
        currency: "KRW".to_owned(),
        items: Vec::new(),
        total,
        payment_method: method.to_owned(),
        attempt: None,
        points_used: 0,
        paid: 0,
        refunded: 0,
        earn_base: if on_delivery { total } else { 0 },
        earn_rate_bp: 100,
        expires_at: None,
        reason: None,
        occurred_at: Utc::now(),
    }
}

/// An order that earns at once.
pub(crate) fn on_delivery(customer_id: Uuid, total: i64) -> OrderEvent {
    placed(customer_id, total, payment_method::ON_DELIVERY)
}

/// The next states of an order.
pub(crate) trait Next {
    fn next(&self, kind: &str, status: &str) -> OrderEvent;
    fn checkout(&self, points: i64) -> OrderEvent;
    fn payment_failed(&self) -> OrderEvent;
    fn confirmed(&self) -> OrderEvent;
    fn refunded(&self, amount: i64) -> OrderEvent;
    fn cancelled(&self) -> OrderEvent;
}

impl Next for OrderEvent {
    fn next(&self, kind: &str, status: &str) -> OrderEvent {
        let mut next = self.clone();
        next.version += 1;
        next.r#type = kind.to_owned();
        next.status = status.to_owned();
        next
    }

    fn checkout(&self, points: i64) -> OrderEvent {
        let mut next = self.next(event_type::CHECKOUT_STARTED, status::PAYMENT_IN_PROGRESS);
        next.attempt = Some(Attempt {
            id: Uuid::now_v7(),
            number: 1,
            points_to_use: points,
            payable: self.total - points,
            confirm_not_after: Utc::now(),
        });
        next
    }

    fn payment_failed(&self) -> OrderEvent {
        self.next(event_type::PAYMENT_FAILED, status::PENDING_PAYMENT)
    }

    fn confirmed(&self) -> OrderEvent {
        let mut next = self.next(event_type::CONFIRMED, status::CONFIRMED);
        next.points_used = self.attempt.as_ref().map_or(0, |attempt| attempt.points_to_use);
        next.paid = next.total - next.points_used;
        next.earn_base = next.paid;
        next
    }

    fn refunded(&self, amount: i64) -> OrderEvent {
        let mut next = self.next(event_type::REFUNDED, status::CONFIRMED);
        next.refunded += amount;
        next.earn_base -= amount;
        next
    }

    fn cancelled(&self) -> OrderEvent {
        let mut next = self.next(event_type::CANCELLED, status::CANCELLED);
        next.refunded = next.paid;
        next.earn_base = 0;
        next
    }
}

/// A walk through the state machine: each choice is a step of what the state allows.
pub(crate) fn walk(first: OrderEvent, choices: &[(u8, u32)]) -> Vec<OrderEvent> {
    let mut history = vec![first];
    for &(choice, number) in choices {
        let Some(last) = history.last() else { break };
        let part = |whole: i64| if whole == 0 { 0 } else { i64::from(number) % (whole + 1) };
        let next = match last.status.as_str() {
            status::PENDING_PAYMENT if choice < 200 => last.checkout(part(last.total)),
            status::PENDING_PAYMENT if choice < 230 => last.next(event_type::EXPIRED, status::EXPIRED),
            status::PENDING_PAYMENT => last.cancelled(),
            status::PAYMENT_IN_PROGRESS if choice < 80 => last.payment_failed(),
            // Raises the version and leaves the status.
            status::PAYMENT_IN_PROGRESS if choice < 110 => last.next("touched", status::PAYMENT_IN_PROGRESS),
            status::PAYMENT_IN_PROGRESS => last.confirmed(),
            status::CONFIRMED if choice < 160 => last.refunded(part(last.earn_base)),
            status::CONFIRMED => last.next(event_type::CANCEL_REQUESTED, status::CANCEL_IN_PROGRESS),
            status::CANCEL_IN_PROGRESS => last.cancelled(),
            _ => break,
        };
        history.push(next);
    }
    history
}
