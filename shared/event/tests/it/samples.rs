//! Events for the tests.

use chrono::{DateTime, Utc};
use uuid::Uuid;
use waybill_event::{Attempt, OrderEvent, OrderItem, PointEvent, order, point};

pub(crate) fn time(micros: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(micros).unwrap()
}

fn uuid(last: u8) -> Uuid {
    Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + u128::from(last))
}

/// Every optional field filled.
pub(crate) fn full_order() -> OrderEvent {
    OrderEvent {
        order_id: uuid(1),
        version: 3,
        r#type: order::event_type::CONFIRMED.into(),
        status: order::status::CONFIRMED.into(),
        customer_id: uuid(2),
        currency: "KRW".into(),
        items: vec![
            OrderItem { sku: "TEA-01".into(), quantity: 2, unit_price: 12_500 },
            OrderItem { sku: "찻잔".into(), quantity: 1, unit_price: 30_000 },
        ],
        total: 55_000,
        payment_method: order::payment_method::CARD.into(),
        attempt: Some(Attempt {
            id: uuid(3),
            number: 1,
            points_to_use: 5_000,
            payable: 50_000,
            confirm_not_after: time(1_796_000_300_000_001),
        }),
        points_used: 5_000,
        paid: 50_000,
        refunded: 0,
        earn_base: 50_000,
        earn_rate_bp: 100,
        expires_at: Some(time(1_796_001_800_000_000)),
        reason: Some("paid".into()),
        occurred_at: time(1_796_000_000_123_456),
    }
}

/// Every optional field null, no items, numbers at their ends.
pub(crate) fn bare_order() -> OrderEvent {
    OrderEvent {
        items: Vec::new(),
        total: i64::MAX,
        paid: i64::MIN,
        earn_rate_bp: i32::MIN,
        attempt: None,
        expires_at: None,
        reason: None,
        occurred_at: time(-1),
        r#type: String::new(),
        ..full_order()
    }
}

pub(crate) fn full_point() -> PointEvent {
    PointEvent {
        entry_id: uuid(4),
        order_id: uuid(1),
        customer_id: uuid(2),
        attempt_id: Some(uuid(3)),
        kind: point::kind::HELD.into(),
        delta: -5_000,
        available_after: 1_200,
        reason: Some("checkout".into()),
        occurred_at: time(1_796_000_000_123_456),
    }
}

pub(crate) fn bare_point() -> PointEvent {
    PointEvent { attempt_id: None, reason: None, ..full_point() }
}
