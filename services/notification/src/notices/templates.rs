//! The words, one template per kind and language. They hold the order's id and nothing about the person.

use clap::ValueEnum;
use uuid::Uuid;
use waybill_event::{OrderEvent, PointEvent};
use waybill_event::{order::event_type, point};

/// Language of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Locale {
    /// Korean.
    Ko,
    /// English.
    En,
}

/// What a customer is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The order was placed.
    Placed,
    /// It is paid.
    Confirmed,
    /// The payment did not work.
    PaymentFailed,
    /// It was not paid in time.
    Expired,
    /// It is cancelled.
    Cancelled,
    /// A part was refunded.
    Refunded,
    /// Points were earned.
    Earned {
        /// How many.
        points: i64,
    },
}

impl Notice {
    /// The notice of an order's event; none for events that customers are not told of, and for unknown ones.
    pub fn of_order(event: &OrderEvent) -> Option<Self> {
        Some(match event.r#type.as_str() {
            event_type::PLACED => Self::Placed,
            event_type::CONFIRMED => Self::Confirmed,
            event_type::PAYMENT_FAILED => Self::PaymentFailed,
            event_type::EXPIRED => Self::Expired,
            event_type::CANCELLED => Self::Cancelled,
            event_type::REFUNDED => Self::Refunded,
            _ => return None,
        })
    }

    /// The notice of a points event; none but for points earned.
    pub fn of_points(event: &PointEvent) -> Option<Self> {
        (event.kind == point::kind::EARNED).then_some(Self::Earned { points: event.delta })
    }

    /// The event's name: `notification.kind`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Placed => event_type::PLACED,
            Self::Confirmed => event_type::CONFIRMED,
            Self::PaymentFailed => event_type::PAYMENT_FAILED,
            Self::Expired => event_type::EXPIRED,
            Self::Cancelled => event_type::CANCELLED,
            Self::Refunded => event_type::REFUNDED,
            Self::Earned { .. } => point::kind::EARNED,
        }
    }

    /// The message in a language.
    pub fn text(self, locale: Locale, order: Uuid) -> String {
        match (locale, self) {
            (Locale::Ko, Self::Placed) => format!("주문 {order}이(가) 접수되었습니다."),
            (Locale::Ko, Self::Confirmed) => format!("주문 {order}의 결제가 완료되었습니다."),
            (Locale::Ko, Self::PaymentFailed) => {
                format!("주문 {order}의 결제가 완료되지 않았습니다. 다시 시도해 주세요.")
            }
            (Locale::Ko, Self::Expired) => format!("주문 {order}이(가) 결제 기한이 지나 만료되었습니다."),
            (Locale::Ko, Self::Cancelled) => format!("주문 {order}이(가) 취소되었습니다."),
            (Locale::Ko, Self::Refunded) => format!("주문 {order}의 일부 금액이 환불되었습니다."),
            (Locale::Ko, Self::Earned { points }) => {
                format!("주문 {order}(으)로 {points}포인트가 적립되었습니다.")
            }
            (Locale::En, Self::Placed) => format!("Your order {order} has been placed."),
            (Locale::En, Self::Confirmed) => format!("The payment of your order {order} is complete."),
            (Locale::En, Self::PaymentFailed) => {
                format!("The payment of your order {order} did not go through. Please try again.")
            }
            (Locale::En, Self::Expired) => {
                format!("Your order {order} was not paid in time and has expired.")
            }
            (Locale::En, Self::Cancelled) => format!("Your order {order} has been cancelled."),
            (Locale::En, Self::Refunded) => format!("A part of your order {order} has been refunded."),
            (Locale::En, Self::Earned { points }) => {
                format!("You have earned {points} points with your order {order}.")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Notice; 7] = [
        Notice::Placed,
        Notice::Confirmed,
        Notice::PaymentFailed,
        Notice::Expired,
        Notice::Cancelled,
        Notice::Refunded,
        Notice::Earned { points: 125 },
    ];

    #[test]
    fn every_notice_has_its_own_words_in_both_languages() {
        let order = Uuid::now_v7();
        let texts: std::collections::BTreeSet<String> =
            ALL.iter().flat_map(|n| [n.text(Locale::Ko, order), n.text(Locale::En, order)]).collect();
        assert_eq!(texts.len(), 2 * ALL.len());
        assert!(texts.iter().all(|text| text.contains(&order.to_string())));
        assert_eq!(texts.iter().filter(|text| text.contains("125")).count(), 2);
    }
}
