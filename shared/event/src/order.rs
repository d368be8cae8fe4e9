//! `orders.v1`: the full state of an order after each change.

use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Codec, Event};

/// What happened: values of [`OrderEvent::type`](OrderEvent). An open set: readers ignore what they do not know.
pub mod event_type {
    /// The order was placed.
    pub const PLACED: &str = "placed";
    /// A payment attempt was opened; asks for a points hold if points are used.
    pub const CHECKOUT_STARTED: &str = "checkout_started";
    /// The attempt ended without payment; releases the hold.
    pub const PAYMENT_FAILED: &str = "payment_failed";
    /// The order is paid.
    pub const CONFIRMED: &str = "confirmed";
    /// The order was not paid in time.
    pub const EXPIRED: &str = "expired";
    /// A paid order is being cancelled.
    pub const CANCEL_REQUESTED: &str = "cancel_requested";
    /// The order is cancelled.
    pub const CANCELLED: &str = "cancelled";
    /// A part was refunded.
    pub const REFUNDED: &str = "refunded";
    /// An approval found for a dead attempt was refunded.
    pub const ORPHAN_PAYMENT_REFUNDED: &str = "orphan_payment_refunded";
}

/// Values of [`OrderEvent::status`]. An open set.
pub mod status {
    /// Waits for payment until `expires_at`.
    pub const PENDING_PAYMENT: &str = "PENDING_PAYMENT";
    /// A payment attempt is open.
    pub const PAYMENT_IN_PROGRESS: &str = "PAYMENT_IN_PROGRESS";
    /// Paid, or payable on delivery.
    pub const CONFIRMED: &str = "CONFIRMED";
    /// The refund is under way.
    pub const CANCEL_IN_PROGRESS: &str = "CANCEL_IN_PROGRESS";
    /// Cancelled; final.
    pub const CANCELLED: &str = "CANCELLED";
    /// Not paid in time; final.
    pub const EXPIRED: &str = "EXPIRED";
}

/// Values of [`OrderEvent::payment_method`]. An open set.
pub mod payment_method {
    /// Paid by card through the gateway.
    pub const CARD: &str = "CARD";
    /// Paid to the courier.
    pub const ON_DELIVERY: &str = "ON_DELIVERY";
}

/// State of an order after a change. Amounts are integers in the currency's minor unit; times are written to the
/// microsecond, so a finer one does not come back equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderEvent {
    /// Id of the order, also the message key.
    pub order_id: Uuid,
    /// Raised by every event; readers keep the highest.
    pub version: i64,
    /// What happened, see [`event_type`].
    pub r#type: String,
    /// Status after the change, see [`status`].
    pub status: String,
    /// Id of the customer.
    pub customer_id: Uuid,
    /// ISO 4217 code.
    pub currency: String,
    /// Lines of the order.
    pub items: Vec<OrderItem>,
    /// Sum of quantity times unit price.
    pub total: i64,
    /// See [`payment_method`].
    pub payment_method: String,
    /// The newest payment attempt.
    #[serde(default)]
    pub attempt: Option<Attempt>,
    /// Points that paid for a part of the order.
    pub points_used: i64,
    /// Money received.
    pub paid: i64,
    /// Money given back so far.
    pub refunded: i64,
    /// Amount on which points are earned.
    pub earn_base: i64,
    /// Basis points (1/10,000), fixed at confirmation.
    pub earn_rate_bp: i32,
    /// When it expires while it waits for payment.
    #[serde(default, with = "chrono::serde::ts_microseconds_option")]
    pub expires_at: Option<DateTime<Utc>>,
    /// Why, for failures, cancellations and refunds.
    #[serde(default)]
    pub reason: Option<String>,
    /// When the change was made.
    #[serde(with = "chrono::serde::ts_microseconds")]
    pub occurred_at: DateTime<Utc>,
}

/// One line of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderItem {
    /// Stock keeping unit.
    pub sku: String,
    /// Number of pieces, at least 1.
    pub quantity: i32,
    /// Price of one piece when the order was placed.
    pub unit_price: i64,
}

/// A payment attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Id of the attempt.
    pub id: Uuid,
    /// 1 for the first attempt of the order.
    pub number: i32,
    /// Points to be held for it.
    pub points_to_use: i64,
    /// What the gateway is asked for: total minus points.
    pub payable: i64,
    /// It is never confirmed after this time.
    #[serde(with = "chrono::serde::ts_microseconds")]
    pub confirm_not_after: DateTime<Utc>,
}

static CODEC: LazyLock<Codec> = LazyLock::new(|| {
    Codec::embedded(OrderEvent::TOPIC, &[include_str!("../../../schemas/history/orders.v1/1.avsc")])
});

impl Event for OrderEvent {
    const TOPIC: &'static str = "orders.v1";
    const AGGREGATE: &'static str = "order";

    fn codec() -> &'static Codec {
        &CODEC
    }

    fn event_type(&self) -> String {
        format!("waybill.order.{}", self.r#type)
    }

    fn key(&self) -> String {
        self.order_id.to_string()
    }
}
