//! From an order's newest state to ledger entries: the differences between its targets and what was done. No I/O.

use uuid::Uuid;
use waybill_event::OrderEvent;
use waybill_event::point::kind as event_kind;

use super::targets::{Hold, Invalid, Targets};

/// Kind of a ledger entry. `ADJUST` exists in the table only: it is no order's doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Available → held.
    Hold,
    /// Held → available.
    Release,
    /// Held → gone.
    Spend,
    /// Back to available.
    Restore,
    /// New points.
    Earn,
    /// Earned points taken back.
    EarnReversal,
}

impl Kind {
    /// As it stands in `point_entry.kind`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hold => "HOLD",
            Self::Release => "RELEASE",
            Self::Spend => "SPEND",
            Self::Restore => "RESTORE",
            Self::Earn => "EARN",
            Self::EarnReversal => "EARN_REVERSAL",
        }
    }

    /// As it stands in `PointEvent.kind`.
    pub fn event(self) -> &'static str {
        match self {
            Self::Hold => event_kind::HELD,
            Self::Release => event_kind::RELEASED,
            Self::Spend => event_kind::SPENT,
            Self::Restore => event_kind::RESTORED,
            Self::Earn => event_kind::EARNED,
            Self::EarnReversal => event_kind::EARN_REVERSED,
        }
    }

    /// Change of (available, held) by one point.
    fn signs(self) -> (i64, i64) {
        match self {
            Self::Hold => (-1, 1),
            Self::Release => (1, -1),
            Self::Spend => (0, -1),
            Self::Restore | Self::Earn => (1, 0),
            Self::EarnReversal => (-1, 0),
        }
    }
}

/// A customer's points.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Can be used; negative after a reversal of points that were gone.
    pub available: i64,
    /// Set aside for payment attempts.
    pub held: i64,
}

/// What an order has done so far: its row of `point_order`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderPoints {
    /// The order.
    pub order_id: Uuid,
    /// Its customer.
    pub customer_id: Uuid,
    /// Newest version applied; 0 before the first.
    pub last_version: i64,
    /// Newest attempt seen.
    pub attempt_id: Option<Uuid>,
    /// Rate of the newest state, in basis points.
    pub earn_rate_bp: i32,
    /// Held now.
    pub held: i64,
    /// Spent in all.
    pub spent: i64,
    /// Restored in all.
    pub restored: i64,
    /// Earned now, after reversals.
    pub earned: i64,
}

/// One entry to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where the points go.
    pub kind: Kind,
    /// Order version, for a decided hold also the attempt.
    pub reference: String,
    /// Positive.
    pub amount: i64,
    /// Attempt that it belongs to.
    pub attempt: Option<Uuid>,
}

impl Entry {
    /// As it stands in `point_entry.amount`: negative leaves the customer, for good or into a hold.
    pub fn signed(&self) -> i64 {
        match self.kind {
            Kind::Release | Kind::Restore | Kind::Earn => self.amount,
            Kind::Hold | Kind::Spend | Kind::EarnReversal => -self.amount,
        }
    }

    /// Change of the available points.
    pub fn delta(&self) -> i64 {
        self.kind.signs().0 * self.amount
    }
}

/// What a newer state changes, before a wanted hold is decided: that alone depends on the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    order: OrderPoints,
    entries: Vec<Entry>,
    hold: Option<Hold>,
}

/// A decided change: what is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// The order's row afterwards.
    pub order: OrderPoints,
    /// The account afterwards.
    pub account: Account,
    /// Entries, each with the available points after it.
    pub entries: Vec<(Entry, i64)>,
    /// The attempt whose hold was refused for good.
    pub rejected: Option<Uuid>,
}

impl OrderPoints {
    /// An order of which nothing is known yet.
    pub fn new(order_id: Uuid, customer_id: Uuid) -> Self {
        Self {
            order_id,
            customer_id,
            last_version: 0,
            attempt_id: None,
            earn_rate_bp: 0,
            held: 0,
            spent: 0,
            restored: 0,
            earned: 0,
        }
    }

    /// The differences that a state with these targets makes; `None` when it or a newer one was applied before.
    ///
    /// # Errors
    /// [`Invalid::Customer`].
    pub fn apply(&self, state: &OrderEvent, targets: Targets) -> Result<Option<Change>, Invalid> {
        if state.customer_id != self.customer_id {
            return Err(Invalid::Customer { order: self.order_id });
        }
        if state.version <= self.last_version {
            return Ok(None);
        }
        let attempt = state.attempt.as_ref().map(|attempt| attempt.id);
        // An attempt is decided once, held or rejected, and a hold stays until the attempt ends.
        let decided = attempt.is_some() && attempt == self.attempt_id;
        let stays = decided && targets.hold.is_some();
        let order = OrderPoints {
            last_version: state.version,
            attempt_id: attempt,
            earn_rate_bp: state.earn_rate_bp,
            held: if stays { self.held } else { 0 },
            spent: targets.spent,
            restored: targets.restored,
            earned: targets.earned,
            ..self.clone()
        };
        let entries = self.differences(&order, attempt);
        Ok(Some(Change { order, entries, hold: targets.hold.filter(|_| !decided) }))
    }

    /// Entries that lead from this row to the next. A target that falls is answered by the opposite kind, so
    /// that the account follows the targets in every direction.
    fn differences(&self, next: &Self, attempt: Option<Uuid>) -> Vec<Entry> {
        let (spent, restored) = (next.spent - self.spent, next.restored - self.restored);
        let spend = spent.max(0) + (-restored).max(0);
        let restore = restored.max(0) + (-spent).max(0);
        let freed = self.held - next.held;
        let from_hold = freed.min(spend);
        let steps = [
            (Kind::Release, freed - from_hold, self.attempt_id),
            // A confirmed order has its points spent even when its hold was never seen.
            (Kind::Hold, spend - from_hold, attempt),
            (Kind::Spend, spend, attempt),
            (Kind::Restore, restore, attempt),
            (Kind::Earn, (next.earned - self.earned).max(0), attempt),
            (Kind::EarnReversal, (self.earned - next.earned).max(0), attempt),
        ];
        let reference = next.last_version.to_string();
        let entry = |(kind, amount, attempt)| Entry { kind, reference: reference.clone(), amount, attempt };
        steps.into_iter().filter(|(_, amount, _)| *amount > 0).map(entry).collect()
    }
}

impl Change {
    /// Posts the entries to the account and decides the hold, last: what the same state frees counts for it.
    ///
    /// # Errors
    /// [`Invalid::Overflow`].
    pub fn decide(self, account: Account) -> Result<Decided, Invalid> {
        let Self { mut order, mut entries, hold } = self;
        let overflow = Invalid::Overflow { order: order.order_id };
        let settled = entries.iter().try_fold(account, post).ok_or(overflow)?;
        let mut rejected = None;
        match hold {
            Some(Hold { attempt, amount }) if amount <= settled.available => {
                order.held = amount;
                let reference = format!("{}:{attempt}", order.last_version);
                entries.push(Entry { kind: Kind::Hold, reference, amount, attempt: Some(attempt) });
            }
            Some(Hold { attempt, .. }) => rejected = Some(attempt),
            None => {}
        }
        let mut account = account;
        let mut posted = Vec::with_capacity(entries.len());
        for entry in entries {
            account = post(account, &entry).ok_or(Invalid::Overflow { order: order.order_id })?;
            posted.push((entry, account.available));
        }
        Ok(Decided { order, account, entries: posted, rejected })
    }
}

fn post(account: Account, entry: &Entry) -> Option<Account> {
    let (available, held) = entry.kind.signs();
    Some(Account {
        available: account.available.checked_add(available * entry.amount)?,
        held: account.held.checked_add(held * entry.amount)?,
    })
}
