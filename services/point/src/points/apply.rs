//! The one function that moves an order's points: for events, and later for replays and reconciliation.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tracing::{Instrument, Span};
use uuid::Uuid;
use waybill_event::point::kind;
use waybill_event::{OrderEvent, PointEvent};
use waybill_outbox::{Locked, Outbox};

use super::Error;
use super::ledger::{self, Account, Decided, Kind, OrderPoints};
use super::store::{self, Posted};
use super::targets::Targets;

/// Reason of a rejected hold in `PointEvent.reason`.
const INSUFFICIENT: &str = "insufficient-points";

/// A state to bring the ledger to, with the span in whose trace its effects are published.
#[derive(Debug, Clone)]
pub struct State<'a> {
    /// The order's state.
    pub event: &'a OrderEvent,
    /// Its span.
    pub span: Span,
}

/// Brings the ledger to the states of orders, in the caller's transaction and in the order given. Gives the points
/// that each state earned, less those it took back.
///
/// A state not newer than what was applied does nothing. Else the entries are the differences to the state's targets,
/// so a lost, repeated or overtaken older state changes nothing. Every entry's event is appended to `points.v1`;
/// ring the outbox after the commit.
///
/// # Errors
/// Any: the transaction must be rolled back. [`Error::is_permanent`] tells whether one of the states can never be
/// applied; apply them one by one to learn which.
pub async fn apply(tx: &mut PgConnection, outbox: &Outbox, states: &[State<'_>]) -> Result<Vec<i64>, Error> {
    let targets = states.iter().map(|state| Targets::of(state.event)).collect::<Result<Vec<_>, _>>()?;
    // Accounts first and in key order, always by this function: no two transactions can wait for each other.
    let customers: BTreeSet<Uuid> = states
        .iter()
        .zip(&targets)
        .filter(|(state, targets)| may_move(state.event, targets))
        .map(customer)
        .collect();
    let mut batch = Batch::default();
    if !customers.is_empty() {
        batch.accounts = store::lock_accounts(tx, &customers).await?;
    }
    let orders = states.iter().map(|state| (state.event.order_id, state.event.customer_id)).collect();
    store::insert_orders(tx, &orders).await?;
    let mut earned = Vec::with_capacity(states.len());
    for (state, targets) in states.iter().zip(targets) {
        earned.push(batch.apply(tx, state, targets).await?);
    }
    batch.write(tx, outbox).await?;
    Ok(earned)
}

/// Whether the customer's account may be needed. The first state of an order that asks for nothing needs none: the
/// account of a busy customer is then not locked at all.
fn may_move(state: &OrderEvent, targets: &Targets) -> bool {
    state.version > 1 || !targets.are_nothing()
}

fn customer((state, _): (&State<'_>, &Targets)) -> Uuid {
    state.event.customer_id
}

/// What is held and decided, before it is written.
#[derive(Default)]
struct Batch {
    accounts: BTreeMap<Uuid, Account>,
    orders: BTreeMap<Uuid, Open>,
    entries: Vec<Posted>,
}

struct Open {
    order: OrderPoints,
    locked: Locked,
    now: DateTime<Utc>,
    events: Vec<PointEvent>,
    span: Span,
    changed: bool,
}

impl Batch {
    async fn apply(
        &mut self,
        tx: &mut PgConnection,
        state: &State<'_>,
        targets: Targets,
    ) -> Result<i64, Error> {
        let order_id = state.event.order_id;
        let open = match self.orders.entry(order_id) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => {
                let locked = store::lock_order(tx, order_id).await?;
                let ((order, now), locked) = locked.ok_or(Error::Vanished(order_id))?;
                let span = state.span.clone();
                place.insert(Open { order, locked, now, events: Vec::new(), span, changed: false })
            }
        };
        let Some(change) = open.order.apply(state.event, targets)? else { return Ok(0) };
        let earned = match self.accounts.get_mut(&state.event.customer_id) {
            Some(account) => {
                let decided = change.decide(*account)?;
                *account = decided.account;
                let earned = decided.order.earned - open.order.earned;
                open.take(decided, &mut self.entries);
                earned
            }
            // Not locked because the state moves nothing; were that wrong, nothing may be written.
            None => {
                let decided = change.decide(Account::default())?;
                if !decided.entries.is_empty() || decided.rejected.is_some() {
                    return Err(Error::Vanished(order_id));
                }
                open.take(decided, &mut self.entries);
                0
            }
        };
        open.span = state.span.clone();
        Ok(earned)
    }

    async fn write(self, tx: &mut PgConnection, outbox: &Outbox) -> Result<(), Error> {
        let orders: Vec<&OrderPoints> =
            self.orders.values().filter(|open| open.changed).map(|open| &open.order).collect();
        if orders.is_empty() {
            return Ok(());
        }
        store::update_orders(tx, &orders).await?;
        if !self.entries.is_empty() {
            store::insert_entries(tx, &self.entries).await?;
            store::update_accounts(tx, &self.accounts).await?;
            fail::fail_point!("point.in_transaction");
        }
        for open in self.orders.into_values().filter(|open| !open.events.is_empty()) {
            outbox.append_all(tx, &open.locked, &open.events).instrument(open.span).await?;
        }
        Ok(())
    }
}

impl Open {
    fn take(&mut self, decided: Decided, entries: &mut Vec<Posted>) {
        let Decided { order, account, entries: posted, rejected } = decided;
        for (entry, available_after) in posted {
            let entry_id = Uuid::now_v7();
            self.events.push(event(&order, entry_id, &entry, available_after, self.now));
            let (customer_id, order_id) = (order.customer_id, order.order_id);
            entries.push(Posted { entry_id, customer_id, order_id, entry, at: self.now });
        }
        self.events.extend(rejected.map(|attempt| rejection(&order, attempt, account.available, self.now)));
        self.order = order;
        self.changed = true;
    }
}

fn event(
    order: &OrderPoints,
    entry_id: Uuid,
    entry: &ledger::Entry,
    available_after: i64,
    now: DateTime<Utc>,
) -> PointEvent {
    PointEvent {
        entry_id,
        order_id: order.order_id,
        customer_id: order.customer_id,
        attempt_id: entry.attempt,
        kind: entry.kind.event().to_owned(),
        delta: entry.delta(),
        available_after,
        reason: (entry.kind == Kind::EarnReversal).then(|| "order-changed".to_owned()),
        occurred_at: now,
    }
}

/// A rejection moves nothing and so has no entry; its id is its own.
fn rejection(order: &OrderPoints, attempt: Uuid, available_after: i64, now: DateTime<Utc>) -> PointEvent {
    PointEvent {
        entry_id: Uuid::now_v7(),
        order_id: order.order_id,
        customer_id: order.customer_id,
        attempt_id: Some(attempt),
        kind: kind::HOLD_REJECTED.to_owned(),
        delta: 0,
        available_after,
        reason: Some(INSUFFICIENT.to_owned()),
        occurred_at: now,
    }
}
