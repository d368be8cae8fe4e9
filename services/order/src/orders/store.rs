//! Every statement of the orders feature.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;
use waybill_outbox::Draft;

use super::place::PlaceOrder;
use super::{Item, Order, PaymentMethod, Status};
use crate::idempotency::{Answer, Entry, Scope, Stored};

/// Price of a product that can be ordered.
#[derive(Debug)]
pub(super) struct Price {
    pub(super) unit_price: i64,
    pub(super) currency: String,
}

/// What placing needs to know, read in one round trip.
#[derive(Debug)]
pub(super) struct Read {
    /// The database's clock.
    pub(super) now: DateTime<Utc>,
    /// Beside the wanted items, `None` for what cannot be ordered.
    pub(super) prices: Vec<Option<Price>>,
    /// What the request's currency earns, in basis points; `None`: it is not declared.
    pub(super) earn_rate_bp: Option<i32>,
    /// The answer that the key already has.
    pub(super) stored: Option<Stored>,
}

/// Reads clock, prices, the currency and an earlier answer. The key's index page is the one that the write needs next.
pub(super) async fn read_for_placing(
    connection: &mut PgConnection,
    scope: &Scope<'_>,
    request: &PlaceOrder,
) -> Result<Read, sqlx::Error> {
    let skus: Vec<&str> = request.items.iter().map(|item| item.sku.as_str()).collect();
    let row = sqlx::query!(
        r#"
        select
            clock.now as "now!",
            price.units as "units!: Vec<Option<i64>>",
            price.currencies as "currencies!: Vec<Option<String>>",
            c.earn_rate_bp as "earn_rate_bp?",
            k.fingerprint as "fingerprint?",
            k.status as "status?",
            k.location as "location?",
            k.body as "body?"
        from (select clock_timestamp() as now) clock
        cross join lateral (
            select
                array_agg(p.unit_price order by wanted.place) as units,
                array_agg(p.currency order by wanted.place) as currencies
            from unnest($1::text[]) with ordinality as wanted (sku, place)
            left join product p on p.sku = wanted.sku and p.active
        ) price
        left join currency c on c.code = $6
        left join idempotency_key k
            on k.principal = $2 and k.method = $3 and k.route = $4 and k.key = $5 and k.expires_at > clock.now
        "#,
        &skus as &[&str],
        scope.principal,
        scope.method,
        scope.route,
        scope.key.as_str(),
        request.currency,
    )
    .fetch_one(connection)
    .await?;
    let price = |(unit_price, currency): (Option<i64>, Option<String>)| {
        Some(Price { unit_price: unit_price?, currency: currency? })
    };
    let stored = match (row.fingerprint, row.status, row.body) {
        (Some(fingerprint), Some(status), Some(body)) => {
            Some(Stored { fingerprint, answer: Answer { status, location: row.location, body: body.into() } })
        }
        _ => None,
    };
    let prices = row.units.into_iter().zip(row.currencies).map(price).collect();
    Ok(Read { now: row.now, prices, earn_rate_bp: row.earn_rate_bp, stored })
}

/// Writes key, order, lines and event in one statement, which is its own transaction. False when the key is
/// taken by an answer that is not yet too old; nothing is written then. Waits for a running request with the
/// same key, at most `lock_timeout`.
pub(super) async fn place(
    connection: &mut PgConnection,
    entry: &Entry<'_>,
    order: &Order,
    draft: &Draft,
) -> Result<bool, sqlx::Error> {
    let skus: Vec<&str> = order.items.iter().map(|item| item.sku.as_str()).collect();
    let quantities: Vec<i32> = order.items.iter().map(|item| item.quantity).collect();
    let unit_prices: Vec<i64> = order.items.iter().map(|item| item.unit_price).collect();
    // Each step selects from the one before it. The event must: else PostgreSQL may append it before the order's
    // row exists, and a seq would be drawn for an order that is never written.
    let appended = sqlx::query_scalar!(
        r#"
        with claimed as (
            insert into idempotency_key as k
                (principal, method, route, key, fingerprint, status, location, body, created_at, expires_at)
            values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
            on conflict on constraint idempotency_key_pkey do update set
                fingerprint = excluded.fingerprint,
                status = excluded.status,
                location = excluded.location,
                body = excluded.body,
                created_at = excluded.created_at,
                expires_at = excluded.expires_at
            where k.expires_at <= clock_timestamp()
            returning k.created_at
        ), o as (
            insert into orders
                (id, customer_id, status, version, currency, total, payment_method, earn_base, earn_rate_bp,
                 expires_at, created_at, updated_at)
            select $11, $1, $12, $13, $14, $15, $16, $17, $18, $19, claimed.created_at, claimed.created_at
            from claimed
            returning id
        ), lines as (
            insert into order_item (order_id, line, sku, quantity, unit_price)
            select o.id, item.line, item.sku, item.quantity, item.unit_price
            from o
            cross join unnest($20::text[], $21::integer[], $22::bigint[])
                with ordinality as item (sku, quantity, unit_price, line)
        )
        select messaging.append($23, $24, o.id::text, $25, $26, $27, $28, $29, $30, $31) as "seq!"
        from o
        "#,
        entry.scope.principal,
        entry.scope.method,
        entry.scope.route,
        entry.scope.key.as_str(),
        entry.fingerprint.as_bytes(),
        entry.answer.status,
        entry.answer.location.as_deref(),
        &entry.answer.body[..],
        entry.created_at,
        entry.expires_at,
        order.id,
        order.status.name(),
        order.version,
        order.currency,
        order.total,
        order.payment_method.name(),
        order.earn_base,
        order.earn_rate_bp,
        order.expires_at,
        &skus as &[&str],
        &quantities,
        &unit_prices,
        draft.id,
        draft.aggregatetype,
        draft.r#type,
        draft.topic,
        draft.payload,
        draft.traceparent,
        draft.tracestate,
        draft.headers,
        draft.max_bytes,
    )
    .fetch_optional(connection)
    .await?;
    Ok(appended.is_some())
}

/// One order with its lines.
#[derive(Debug)]
struct Row {
    id: Uuid,
    customer_id: Uuid,
    status: String,
    version: i64,
    currency: String,
    total: i64,
    payment_method: String,
    points_used: i64,
    paid: i64,
    refunded: i64,
    earn_base: i64,
    earn_rate_bp: i32,
    reason: Option<String>,
    expires_at: Option<DateTime<Utc>>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    skus: Vec<String>,
    quantities: Vec<i32>,
    unit_prices: Vec<i64>,
}

impl TryFrom<Row> for Order {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        // Only a newer release writes names that this one does not know.
        let unknown =
            |what: &str| sqlx::Error::Decode(format!("order {} has an unknown {what}", row.id).into());
        let lines = row.skus.into_iter().zip(row.quantities).zip(row.unit_prices);
        Ok(Self {
            id: row.id,
            customer_id: row.customer_id,
            status: Status::named(&row.status).ok_or_else(|| unknown("status"))?,
            version: row.version,
            currency: row.currency,
            items: lines.map(|((sku, quantity), unit_price)| Item { sku, quantity, unit_price }).collect(),
            total: row.total,
            payment_method: PaymentMethod::named(&row.payment_method)
                .ok_or_else(|| unknown("payment method"))?,
            points_used: row.points_used,
            paid: row.paid,
            refunded: row.refunded,
            earn_base: row.earn_base,
            earn_rate_bp: row.earn_rate_bp,
            reason: row.reason,
            expires_at: row.expires_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

/// One order; with `customer`, only if it is that customer's.
pub(super) async fn find(
    connection: &mut PgConnection,
    id: Uuid,
    customer: Option<Uuid>,
) -> Result<Option<Order>, sqlx::Error> {
    let row = sqlx::query_as!(
        Row,
        r#"
        select
            o.id, o.customer_id, o.status, o.version, o.currency, o.total, o.payment_method, o.points_used,
            o.paid, o.refunded, o.earn_base, o.earn_rate_bp, o.reason, o.expires_at, o.created_at, o.updated_at,
            line.skus as "skus!", line.quantities as "quantities!", line.unit_prices as "unit_prices!"
        from orders o
        cross join lateral (
            select
                array_agg(i.sku order by i.line) as skus,
                array_agg(i.quantity order by i.line) as quantities,
                array_agg(i.unit_price order by i.line) as unit_prices
            from order_item i
            where i.order_id = o.id
        ) line
        where o.id = $1 and ($2::uuid is null or o.customer_id = $2)
        "#,
        id,
        customer,
    )
    .fetch_optional(connection)
    .await?;
    row.map(Order::try_from).transpose()
}

/// Which orders are listed.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) customer: Uuid,
    pub(super) status: Option<Status>,
    /// Inclusive.
    pub(super) created_from: Option<DateTime<Utc>>,
    /// Exclusive.
    pub(super) created_to: Option<DateTime<Utc>>,
    /// Position of the last order of the page before.
    pub(super) after: Option<(DateTime<Utc>, Uuid)>,
    pub(super) limit: i64,
}

/// A customer's orders, newest first, after a position.
pub(super) async fn list(connection: &mut PgConnection, page: &Page) -> Result<Vec<Order>, sqlx::Error> {
    // `coalesce` to the ends of time instead of `or … is null`: the bounds stay conditions of the index.
    let rows = sqlx::query_as!(
        Row,
        r#"
        select
            o.id, o.customer_id, o.status, o.version, o.currency, o.total, o.payment_method, o.points_used,
            o.paid, o.refunded, o.earn_base, o.earn_rate_bp, o.reason, o.expires_at, o.created_at, o.updated_at,
            line.skus as "skus!", line.quantities as "quantities!", line.unit_prices as "unit_prices!"
        from orders o
        cross join lateral (
            select
                array_agg(i.sku order by i.line) as skus,
                array_agg(i.quantity order by i.line) as quantities,
                array_agg(i.unit_price order by i.line) as unit_prices
            from order_item i
            where i.order_id = o.id
        ) line
        where o.customer_id = $1
            and o.created_at >= coalesce($2, '-infinity'::timestamptz)
            and o.created_at < coalesce($3, 'infinity'::timestamptz)
            and (o.created_at, o.id) < (
                coalesce($4, 'infinity'::timestamptz),
                coalesce($5, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
            and ($6::text is null or o.status = $6)
        order by o.created_at desc, o.id desc
        limit $7
        "#,
        page.customer,
        page.created_from,
        page.created_to,
        page.after.map(|(at, _)| at),
        page.after.map(|(_, id)| id),
        page.status.map(Status::name),
        page.limit,
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter().map(Order::try_from).collect()
}
