//! Events as other teams' producers send them: of orders that no order service knows.

use uuid::Uuid;
use waybill_event::OrderEvent;

/// A confirmed order of a customer with the order's own id; it earns ten points.
pub fn order(order_id: Uuid, version: i64) -> OrderEvent {
    OrderEvent {
        order_id,
        version,
        r#type: waybill_event::order::event_type::CONFIRMED.to_owned(),
        status: waybill_event::order::status::CONFIRMED.to_owned(),
        customer_id: order_id,
        currency: "KRW".to_owned(),
        items: Vec::new(),
        total: 1_000,
        payment_method: waybill_event::order::payment_method::ON_DELIVERY.to_owned(),
        attempt: None,
        points_used: 0,
        paid: 1_000,
        refunded: 0,
        earn_base: 1_000,
        earn_rate_bp: 100,
        expires_at: None,
        reason: None,
        occurred_at: chrono::Utc::now(),
    }
}
