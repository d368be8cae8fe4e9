//! What an order is, without I/O: its lines, its states, its event and its JSON form.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;
use uuid::Uuid;
use waybill_event::order::{payment_method, status};
use waybill_event::{OrderEvent, OrderItem};

/// Largest total of an order, in the currency's minor unit: what every JSON reader holds exactly (2^53 − 1).
pub const MAX_TOTAL: i64 = 9_007_199_254_740_991;

/// States of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Waits for payment until `expires_at`.
    PendingPayment,
    /// A payment attempt is open.
    PaymentInProgress,
    /// Paid, or payable on delivery.
    Confirmed,
    /// A refund is under way.
    CancelInProgress,
    /// Cancelled; final.
    Cancelled,
    /// Not paid in time; final.
    Expired,
}

impl Status {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::PendingPayment,
        Self::PaymentInProgress,
        Self::Confirmed,
        Self::CancelInProgress,
        Self::Cancelled,
        Self::Expired,
    ];

    /// Its name in JSON, in the event and in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PendingPayment => status::PENDING_PAYMENT,
            Self::PaymentInProgress => status::PAYMENT_IN_PROGRESS,
            Self::Confirmed => status::CONFIRMED,
            Self::CancelInProgress => status::CANCEL_IN_PROGRESS,
            Self::Cancelled => status::CANCELLED,
            Self::Expired => status::EXPIRED,
        }
    }

    /// The state of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// How an order is paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum PaymentMethod {
    /// By card, through the gateway, before it is confirmed.
    Card,
    /// To the courier; confirmed at once.
    OnDelivery,
}

impl PaymentMethod {
    /// Its name in JSON, in the event and in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Card => payment_method::CARD,
            Self::OnDelivery => payment_method::ON_DELIVERY,
        }
    }

    /// The method of that name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Card, Self::OnDelivery].into_iter().find(|method| method.name() == name)
    }
}

/// By hand: a derived one calls `null` a fault of JSON's syntax, where the field is at fault.
impl<'de> Deserialize<'de> for PaymentMethod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| {
            D::Error::unknown_variant(&name, &[payment_method::CARD, payment_method::ON_DELIVERY])
        })
    }
}

/// One line of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    /// Stock keeping unit.
    #[schema(example = "TEA-100")]
    pub sku: String,
    /// Number of pieces.
    #[schema(minimum = 1, maximum = 1000, example = 2)]
    pub quantity: i32,
    /// Price of one piece when the order was placed, in the currency's minor unit.
    #[schema(minimum = 0, example = 4500)]
    pub unit_price: i64,
}

/// An order as it is stored, and as the API shows it. Amounts are in the currency's minor unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    /// UUIDv7.
    pub id: Uuid,
    /// Who placed it.
    pub customer_id: Uuid,
    /// Where it stands.
    pub status: Status,
    /// Raised by every change; the ETag.
    #[schema(minimum = 1, example = 1)]
    pub version: i64,
    /// ISO 4217 code.
    #[schema(pattern = "^[A-Z]{3}$", example = "KRW")]
    pub currency: String,
    /// Lines as the customer gave them.
    pub items: Vec<Item>,
    /// Sum of quantity times unit price.
    #[schema(minimum = 0, maximum = 9007199254740991i64, example = 9000)]
    pub total: i64,
    /// How it is paid.
    pub payment_method: PaymentMethod,
    /// Points that paid for a part of it.
    #[schema(minimum = 0)]
    pub points_used: i64,
    /// Money received.
    #[schema(minimum = 0)]
    pub paid: i64,
    /// Money given back.
    #[schema(minimum = 0)]
    pub refunded: i64,
    /// Amount on which points are earned; 0 until confirmed. For the event only.
    #[serde(skip)]
    pub earn_base: i64,
    /// Rate in basis points, fixed at confirmation; 0 until then. For the event only.
    #[serde(skip)]
    pub earn_rate_bp: i32,
    /// Why it ended as it did.
    #[schema(required = true)]
    pub reason: Option<String>,
    /// When it expires while it waits for payment.
    #[serde(serialize_with = "optional_time")]
    #[schema(required = true)]
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was placed, by the database's clock.
    #[serde(serialize_with = "time")]
    pub created_at: DateTime<Utc>,
    /// When it last changed, by the database's clock.
    #[serde(serialize_with = "time")]
    pub updated_at: DateTime<Utc>,
}

/// What a new order needs to know beside its lines.
#[derive(Debug)]
pub(super) struct Terms {
    /// Points earned, in basis points of what counts.
    pub(super) earn_rate_bp: i32,
    /// How long a card order waits for payment.
    pub(super) payment_window: Duration,
    /// The database's clock.
    pub(super) now: DateTime<Utc>,
}

impl Order {
    /// A new order, version 1. Payable on delivery it is confirmed at once; by card it waits for payment.
    pub(super) fn placed(
        customer_id: Uuid,
        currency: String,
        payment_method: PaymentMethod,
        items: Vec<Item>,
        total: i64,
        terms: &Terms,
    ) -> Self {
        let (status, earn_base, earn_rate_bp, expires_at) = match payment_method {
            PaymentMethod::OnDelivery => (Status::Confirmed, total, terms.earn_rate_bp, None),
            PaymentMethod::Card => (Status::PendingPayment, 0, 0, Some(terms.now + terms.payment_window)),
        };
        Self {
            id: Uuid::now_v7(),
            customer_id,
            status,
            version: 1,
            currency,
            items,
            total,
            payment_method,
            points_used: 0,
            paid: 0,
            refunded: 0,
            earn_base,
            earn_rate_bp,
            reason: None,
            expires_at,
            created_at: terms.now,
            updated_at: terms.now,
        }
    }

    /// The event that carries this state; `kind` is one of [`waybill_event::order::event_type`].
    pub fn event(&self, kind: &str) -> OrderEvent {
        let item = |item: &Item| OrderItem {
            sku: item.sku.clone(),
            quantity: item.quantity,
            unit_price: item.unit_price,
        };
        OrderEvent {
            order_id: self.id,
            version: self.version,
            r#type: kind.to_owned(),
            status: self.status.name().to_owned(),
            customer_id: self.customer_id,
            currency: self.currency.clone(),
            items: self.items.iter().map(item).collect(),
            total: self.total,
            payment_method: self.payment_method.name().to_owned(),
            attempt: None,
            points_used: self.points_used,
            paid: self.paid,
            refunded: self.refunded,
            earn_base: self.earn_base,
            earn_rate_bp: self.earn_rate_bp,
            expires_at: self.expires_at,
            reason: self.reason.clone(),
            occurred_at: self.updated_at,
        }
    }
}

fn time<S: Serializer>(at: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&waybill_event::time::ce_time(*at))
}

fn optional_time<S: Serializer>(at: &Option<DateTime<Utc>>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => time(at, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms { earn_rate_bp: 100, payment_window: Duration::from_secs(1800), now: DateTime::UNIX_EPOCH }
    }

    #[test]
    fn names_are_one_set_in_json_event_and_database() {
        for status in Status::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
            assert_eq!(Status::named(status.name()), Some(status));
        }
        for method in [PaymentMethod::Card, PaymentMethod::OnDelivery] {
            assert_eq!(serde_json::to_value(method).unwrap(), method.name());
            assert_eq!(PaymentMethod::named(method.name()), Some(method));
        }
        assert_eq!((Status::named("confirmed"), PaymentMethod::named("CASH")), (None, None));
    }

    #[test]
    fn on_delivery_is_confirmed_at_once_and_a_card_waits() {
        let order = |method| Order::placed(Uuid::nil(), "KRW".into(), method, vec![], 5_000, &terms());
        let confirmed = order(PaymentMethod::OnDelivery);
        assert_eq!(
            (confirmed.status, confirmed.earn_base, confirmed.earn_rate_bp, confirmed.expires_at),
            (Status::Confirmed, 5_000, 100, None)
        );
        let waits = order(PaymentMethod::Card);
        assert_eq!(
            (waits.status, waits.earn_base, waits.expires_at),
            (Status::PendingPayment, 0, Some(terms().now + Duration::from_secs(1800)))
        );
    }
}
