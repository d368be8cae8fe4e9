//! Placing an order: one read, one write.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;
use waybill_event::order::event_type;
use waybill_service::http::field;

use super::order::{MAX_TOTAL, Terms};
use super::store::{self, Read};
use super::{Error, Item, Order, Orders, PaymentMethod, Violation};
use crate::idempotency::{self, Answer, Fingerprint, Key, Outcome, Scope};

/// Most lines of one order.
pub const MAX_ITEMS: usize = 100;
/// Most pieces of one line.
pub const MAX_QUANTITY: i32 = 1000;
/// Longest stock keeping unit, in bytes.
pub const MAX_SKU_BYTES: usize = 64;

/// Route template of placing, part of an idempotency key's scope.
pub(super) const ROUTE: &str = "/v1/orders";

/// The body of `POST /v1/orders`. Its serialized form is what the fingerprint of an idempotency key is taken of:
/// add fields at the end, optional and skipped when absent, or keys of running clients no longer match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlaceOrder {
    /// What is ordered; 1 to 100 lines, each stock keeping unit once.
    #[serde(deserialize_with = "field::objects")]
    #[schema(min_items = 1, max_items = 100)]
    pub items: Vec<PlaceItem>,
    /// ISO 4217 code; every product must be sold in it.
    #[schema(pattern = "^[A-Z]{3}$", example = "KRW")]
    pub currency: String,
    /// How it will be paid.
    pub payment_method: PaymentMethod,
    /// What the customer was shown, in the currency's minor unit; refused when it is not the total.
    #[serde(
        default,
        deserialize_with = "field::optional_unjudged::<0, MAX_TOTAL, _>",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 0, maximum = 9007199254740991i64)]
    pub expected_amount: Option<i64>,
}

/// One wanted line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlaceItem {
    /// Stock keeping unit.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", example = "TEA-100")]
    pub sku: String,
    /// Number of pieces, 1 to 1000.
    #[serde(deserialize_with = "quantity")]
    #[schema(minimum = 1, maximum = 1000, example = 2)]
    pub quantity: i32,
}

/// Beyond 32 bits it is their least or most, and judged with all other fields.
fn quantity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    let value = field::unjudged::<1, { MAX_QUANTITY as i64 }, D>(deserializer)?;
    Ok(i32::try_from(value).unwrap_or(if value < 0 { i32::MIN } else { i32::MAX }))
}

/// Places an order once per key, in two round trips: prices, clock and an earlier answer are read; then key,
/// order, lines and event are written by one statement. May be dropped at any point: either all of it is
/// committed, or nothing, and the key tells which.
pub(super) async fn place(
    orders: &Orders,
    customer: Uuid,
    key: &Key,
    request: PlaceOrder,
) -> Result<Outcome, Error> {
    let violations = violations(&request);
    if !violations.is_empty() {
        return Err(Error::Invalid(violations));
    }
    let fingerprint = Fingerprint::of(&request)?;
    let scope = Scope { principal: customer, method: "POST", route: ROUTE, key };
    // One connection for both statements: the second never queues behind other requests' first.
    let mut connection = orders.gate.acquire().await?;
    let read = store::read_for_placing(&mut connection, &scope, &request).await?;
    // Before the prices are judged: a replay answers as it did, whatever the products cost today.
    if let Some(stored) = read.stored {
        return Ok(orders.replay(stored, &fingerprint)?);
    }
    let settings = &orders.settings;
    let order = priced(customer, request, &read, settings.payment_window)?;
    let answer = Answer::created(format!("{ROUTE}/{}", order.id), &order)?;
    let draft = orders.outbox.draft(&order.event(event_type::PLACED))?;
    let entry = idempotency::Entry {
        scope: &scope,
        fingerprint: &fingerprint,
        answer: &answer,
        created_at: read.now,
        expires_at: read.now + settings.idempotency_lifetime,
    };
    fail::fail_point!("order.before_commit");
    let written = store::place(&mut connection, &entry, &order, &draft).await;
    let placed = written.map_err(idempotency::still_running)?;
    if !placed {
        // Another request with this key committed after our read.
        let stored = idempotency::find(&mut connection, &scope).await?;
        let stored = stored.ok_or(idempotency::Error::InProgress)?;
        return Ok(orders.replay(stored, &fingerprint)?);
    }
    fail::fail_point!("order.after_commit");
    orders.outbox.ring();
    orders.metrics.placed(order.payment_method);
    // The trace id of a traceparent, `00-<trace>-<span>-<flags>`.
    let trace_id = draft.traceparent.as_deref().and_then(|parent| parent.get(3..35));
    tracing::info!(order_id = %order.id, trace_id, status = order.status.name(), "order placed");
    Ok(Outcome::Done(answer))
}

/// Everything that can be judged without the database.
fn violations(request: &PlaceOrder) -> Vec<Violation> {
    let mut found = Vec::new();
    if request.items.is_empty() || request.items.len() > MAX_ITEMS {
        found.push(Violation::new("/items", format!("must have 1 to {MAX_ITEMS} elements")));
    }
    let mut seen = HashMap::with_capacity(request.items.len());
    for (index, item) in request.items.iter().take(MAX_ITEMS).enumerate() {
        let sku = item.sku.as_str();
        if !is_sku(sku) {
            let detail = format!("must be 1 to {MAX_SKU_BYTES} letters, digits, '.', '_' or '-'");
            found.push(Violation::new(format!("/items/{index}/sku"), detail));
        } else if let Some(first) = seen.insert(sku, index) {
            let detail = format!("is already in /items/{first}; give each sku once, with its whole quantity");
            found.push(Violation::new(format!("/items/{index}/sku"), detail));
        }
        if !(1..=MAX_QUANTITY).contains(&item.quantity) {
            let detail = field::range(1, MAX_QUANTITY.into());
            found.push(Violation::new(format!("/items/{index}/quantity"), detail));
        }
    }
    if request.currency.len() != 3 || !request.currency.bytes().all(|b| b.is_ascii_uppercase()) {
        found.push(Violation::new("/currency", "must be an ISO 4217 code of three capital letters"));
    }
    if request.expected_amount.is_some_and(|amount| !(0..=MAX_TOTAL).contains(&amount)) {
        found.push(Violation::new("/expectedAmount", field::range(0, MAX_TOTAL)));
    }
    found
}

/// Whether this is the shape of a stock keeping unit; equal to the check of table `product`.
pub(crate) fn is_sku(text: &str) -> bool {
    let legal = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    text.len() <= MAX_SKU_BYTES
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && text.as_bytes().iter().all(legal)
}

/// What an order in this currency earns, in basis points; else why none can be made of these items.
fn currency(request: &PlaceOrder, read: &Read) -> Result<i32, Violation> {
    let sold: BTreeSet<&str> = read.prices.iter().flatten().map(|price| price.currency.as_str()).collect();
    let refused = |detail| Err(Violation::new("/currency", detail));
    if sold.iter().any(|sold| *sold != request.currency) {
        let sold = Vec::from_iter(sold);
        return refused(match sold[..] {
            [one] => format!("must be {one}, in which the items are sold"),
            _ => format!("must be the currency of every item; these are sold in {}", sold.join(", ")),
        });
    }
    let undeclared = || refused(format!("orders are not taken in {}", request.currency));
    read.earn_rate_bp.map_or_else(undeclared, Ok)
}

/// The order at today's prices.
fn priced(
    customer: Uuid,
    request: PlaceOrder,
    read: &Read,
    payment_window: Duration,
) -> Result<Order, Error> {
    let earn_rate_bp = currency(&request, read);
    let mut items = Vec::with_capacity(request.items.len());
    let mut found = Vec::new();
    let mut total: Option<i64> = Some(0);
    for (index, (item, price)) in request.items.into_iter().zip(&read.prices).enumerate() {
        let Some(price) = price else {
            let detail = "is not a product that can be ordered";
            found.push(Violation::new(format!("/items/{index}/sku"), detail));
            continue;
        };
        let amount = price.unit_price.checked_mul(i64::from(item.quantity));
        total = total.zip(amount).and_then(|(sum, amount)| sum.checked_add(amount));
        items.push(Item { sku: item.sku, quantity: item.quantity, unit_price: price.unit_price });
    }
    let terms = match (earn_rate_bp, found.is_empty()) {
        (Ok(earn_rate_bp), true) => Terms { earn_rate_bp, payment_window, now: read.now },
        (earn_rate_bp, _) => {
            found.extend(earn_rate_bp.err());
            return Err(Error::Invalid(found));
        }
    };
    let total = total.filter(|total| *total <= MAX_TOTAL).ok_or(Error::TotalTooLarge)?;
    match request.expected_amount {
        Some(expected) if expected != total => Err(Error::AmountMismatch { expected, total }),
        _ => Ok(Order::placed(customer, request.currency, request.payment_method, items, total, &terms)),
    }
}
