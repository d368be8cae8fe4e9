//! `points.v1`: increments of a customer's points.

use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Codec, Event};

/// Values of [`PointEvent::kind`]. An open set.
pub mod kind {
    /// Points are held for a payment attempt.
    pub const HELD: &str = "held";
    /// Too few points; final for the attempt.
    pub const HOLD_REJECTED: &str = "hold_rejected";
    /// The hold was given back.
    pub const RELEASED: &str = "released";
    /// Held points were spent.
    pub const SPENT: &str = "spent";
    /// Spent points were given back.
    pub const RESTORED: &str = "restored";
    /// Points were earned.
    pub const EARNED: &str = "earned";
    /// Earned points were taken back.
    pub const EARN_REVERSED: &str = "earn_reversed";
}

/// One increment. To be counted once per `entry_id` and never dropped. Times are written to the microsecond.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointEvent {
    /// Id of the entry, for deduplication.
    pub entry_id: Uuid,
    /// Id of the order that caused it, also the message key.
    pub order_id: Uuid,
    /// Id of the customer.
    pub customer_id: Uuid,
    /// Payment attempt it answers.
    #[serde(default)]
    pub attempt_id: Option<Uuid>,
    /// See [`kind`].
    pub kind: String,
    /// Change of the available points; negative takes away, 0 for a rejected hold.
    pub delta: i64,
    /// Available points afterwards; may be negative after a reversal.
    pub available_after: i64,
    /// Why, for rejections and reversals.
    #[serde(default)]
    pub reason: Option<String>,
    /// When the entry was made.
    #[serde(with = "chrono::serde::ts_microseconds")]
    pub occurred_at: DateTime<Utc>,
}

static CODEC: LazyLock<Codec> = LazyLock::new(|| {
    Codec::embedded(PointEvent::TOPIC, &[include_str!("../../../schemas/history/points.v1/1.avsc")])
});

impl Event for PointEvent {
    const TOPIC: &'static str = "points.v1";
    const AGGREGATE: &'static str = "order";

    fn codec() -> &'static Codec {
        &CODEC
    }

    fn event_type(&self) -> String {
        format!("waybill.points.{}", self.kind)
    }

    fn key(&self) -> String {
        self.order_id.to_string()
    }
}
