//! What the newest state of an order asks of its customer's points. No I/O.

use uuid::Uuid;
use waybill_event::OrderEvent;
use waybill_event::order::status;

/// Basis points in a whole.
const WHOLE_BP: i32 = 10_000;

/// Why a state cannot be applied; it never can, however often it is tried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A status this version does not know. Guessing would move points; a dead letter waits for the new version.
    #[error("unknown order status {0:?}")]
    Status(String),
    /// A number that no order can have.
    #[error("{field} is {value}: {rule}")]
    Number {
        /// Name of the field in the event.
        field: &'static str,
        /// Its value.
        value: i64,
        /// What it should be.
        rule: &'static str,
    },
    /// An order never changes its customer.
    #[error("order {order} belongs to another customer")]
    Customer {
        /// The order.
        order: Uuid,
    },
    /// The balance would leave the range of a 64-bit integer.
    #[error("the balance of order {order}'s customer would overflow")]
    Overflow {
        /// The order.
        order: Uuid,
    },
}

/// Points to be held for an attempt in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The attempt.
    pub attempt: Uuid,
    /// Points, at least 1.
    pub amount: i64,
}

/// The targets: a function of the newest state alone, so that lost, repeated and reordered states change nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Targets {
    /// Asked for while the attempt is in progress.
    pub hold: Option<Hold>,
    /// Points that paid for the order.
    pub spent: i64,
    /// Of these, given back; never more than `spent`.
    pub restored: i64,
    /// Points earned by the order.
    pub earned: i64,
}

impl Targets {
    /// Computes the targets of a state.
    ///
    /// # Errors
    /// [`Invalid`]: the state contradicts itself, or has a status that is not known here.
    pub fn of(state: &OrderEvent) -> Result<Self, Invalid> {
        check(state)?;
        let (spent, in_progress, cancelled) = match state.status.as_str() {
            status::PENDING_PAYMENT | status::EXPIRED => (0, false, false),
            status::PAYMENT_IN_PROGRESS => (0, true, false),
            status::CONFIRMED | status::CANCEL_IN_PROGRESS => (state.points_used, false, false),
            status::CANCELLED => (state.points_used, false, true),
            other => return Err(Invalid::Status(other.to_owned())),
        };
        let restored = if cancelled { spent } else { share(spent, state.refunded, state.total) };
        let attempt = state.attempt.as_ref().filter(|attempt| in_progress && attempt.points_to_use > 0);
        Ok(Self {
            hold: attempt.map(|attempt| Hold { attempt: attempt.id, amount: attempt.points_to_use }),
            spent,
            restored,
            // The base is 0 unless confirmed, whatever the payment method: the order service decides it.
            earned: share(state.earn_base, i64::from(state.earn_rate_bp), i64::from(WHOLE_BP)),
        })
    }

    /// Whether an order that has done nothing yet moves no point at this state.
    pub fn are_nothing(&self) -> bool {
        *self == Self { hold: None, spent: 0, restored: 0, earned: 0 }
    }
}

/// `floor(amount × part / whole)` for `0 ≤ part ≤ whole`; 0 of nothing. Cannot overflow: the product is 128 bits
/// wide and the result is not above `amount`.
fn share(amount: i64, part: i64, whole: i64) -> i64 {
    if whole == 0 {
        return 0;
    }
    i64::try_from(i128::from(amount) * i128::from(part) / i128::from(whole)).unwrap_or(amount)
}

fn check(state: &OrderEvent) -> Result<(), Invalid> {
    let rules = [
        ("version", state.version, state.version >= 1, "at least 1"),
        ("total", state.total, state.total >= 0, "not negative"),
        (
            "points_used",
            state.points_used,
            (0..=state.total).contains(&state.points_used),
            "between 0 and total",
        ),
        ("refunded", state.refunded, (0..=state.total).contains(&state.refunded), "between 0 and total"),
        ("earn_base", state.earn_base, (0..=state.total).contains(&state.earn_base), "between 0 and total"),
        (
            "earn_rate_bp",
            i64::from(state.earn_rate_bp),
            (0..=WHOLE_BP).contains(&state.earn_rate_bp),
            "between 0 and 10,000",
        ),
    ];
    if let Some(&(field, value, _, rule)) = rules.iter().find(|(_, _, holds, _)| !holds) {
        return Err(Invalid::Number { field, value, rule });
    }
    match &state.attempt {
        Some(attempt) if !(0..=state.total).contains(&attempt.points_to_use) => Err(Invalid::Number {
            field: "attempt.points_to_use",
            value: attempt.points_to_use,
            rule: "between 0 and total",
        }),
        _ => Ok(()),
    }
}
