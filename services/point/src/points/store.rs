//! All SQL of the ledger.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;
use waybill_outbox::Locked;

use super::ledger::{Account, Entry, OrderPoints};

/// An entry with its place in the ledger, to be written.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) entry_id: Uuid,
    pub(super) customer_id: Uuid,
    pub(super) order_id: Uuid,
    pub(super) entry: Entry,
    pub(super) at: DateTime<Utc>,
}

/// An entry as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryRow {
    /// Its id.
    pub entry_id: Uuid,
    /// The order that caused it; none for an adjustment.
    pub order_id: Option<Uuid>,
    /// Kind, as in the table.
    pub kind: String,
    /// Negative leaves, positive comes.
    pub amount: i64,
    /// When it was written.
    pub created_at: DateTime<Utc>,
}

/// An account that is not what the ledger says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discrepancy {
    /// The customer.
    pub customer_id: Uuid,
    /// The account.
    pub account: Account,
    /// The sum of the entries.
    pub entries: Account,
}

/// Makes the orders' rows where there are none, so that they can be locked. In key order, as are all writes.
pub(super) async fn insert_orders(
    tx: &mut PgConnection,
    orders: &BTreeMap<Uuid, Uuid>,
) -> Result<(), sqlx::Error> {
    let (orders, customers): (Vec<Uuid>, Vec<Uuid>) = orders.iter().unzip();
    sqlx::query!(
        "insert into point_order (order_id, customer_id)
         select order_id, customer_id from unnest($1::uuid[], $2::uuid[]) as o (order_id, customer_id)
         order by order_id
         on conflict on constraint point_order_pkey do nothing",
        &orders,
        &customers,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Locks an order's row and reads the clock under the lock. A statement of its own after [`insert_orders`]: a row
/// that another transaction has just committed is visible only to a new statement.
pub(super) async fn lock_order(
    tx: &mut PgConnection,
    order_id: Uuid,
) -> Result<Option<((OrderPoints, DateTime<Utc>), Locked)>, sqlx::Error> {
    let locked = waybill_outbox::lock(
        tx,
        order_id.to_string(),
        sqlx::query!(
            r#"select order_id, customer_id, last_version, attempt_id, earn_rate_bp, held, spent, restored, earned,
                      clock_timestamp() as "now!"
               from point_order where order_id = $1 for no key update"#,
            order_id,
        ),
    )
    .await?;
    Ok(locked.map(|(row, locked)| {
        let order = OrderPoints {
            order_id: row.order_id,
            customer_id: row.customer_id,
            last_version: row.last_version,
            attempt_id: row.attempt_id,
            earn_rate_bp: row.earn_rate_bp,
            held: row.held,
            spent: row.spent,
            restored: row.restored,
            earned: row.earned,
        };
        ((order, row.now), locked)
    }))
}

/// Locks accounts in key order, making them first where there are none.
pub(super) async fn lock_accounts(
    tx: &mut PgConnection,
    customers: &BTreeSet<Uuid>,
) -> Result<BTreeMap<Uuid, Account>, sqlx::Error> {
    let customers: Vec<Uuid> = customers.iter().copied().collect();
    sqlx::query!(
        "insert into point_account (customer_id)
         select customer_id from unnest($1::uuid[]) as c (customer_id) order by customer_id
         on conflict on constraint point_account_pkey do nothing",
        &customers,
    )
    .execute(&mut *tx)
    .await?;
    let rows = sqlx::query!(
        "select customer_id, available, held from point_account
         where customer_id = any($1) order by customer_id for no key update",
        &customers,
    )
    .fetch_all(tx)
    .await?;
    let account = |available, held| Account { available, held };
    Ok(rows.into_iter().map(|row| (row.customer_id, account(row.available, row.held))).collect())
}

/// Writes the orders' rows; they are locked.
pub(super) async fn update_orders(tx: &mut PgConnection, orders: &[&OrderPoints]) -> Result<(), sqlx::Error> {
    let ids: Vec<Uuid> = orders.iter().map(|order| order.order_id).collect();
    let versions: Vec<i64> = orders.iter().map(|order| order.last_version).collect();
    let attempts: Vec<Option<Uuid>> = orders.iter().map(|order| order.attempt_id).collect();
    let rates: Vec<i32> = orders.iter().map(|order| order.earn_rate_bp).collect();
    let held: Vec<i64> = orders.iter().map(|order| order.held).collect();
    let spent: Vec<i64> = orders.iter().map(|order| order.spent).collect();
    let restored: Vec<i64> = orders.iter().map(|order| order.restored).collect();
    let earned: Vec<i64> = orders.iter().map(|order| order.earned).collect();
    sqlx::query!(
        "update point_order o
         set last_version = n.last_version, attempt_id = n.attempt_id, earn_rate_bp = n.earn_rate_bp,
             held = n.held, spent = n.spent, restored = n.restored, earned = n.earned
         from unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::integer[], $5::bigint[], $6::bigint[],
                     $7::bigint[], $8::bigint[])
              as n (order_id, last_version, attempt_id, earn_rate_bp, held, spent, restored, earned)
         where o.order_id = n.order_id",
        &ids,
        &versions,
        &attempts as &[Option<Uuid>],
        &rates,
        &held,
        &spent,
        &restored,
        &earned,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Writes the accounts' balances; they are locked.
pub(super) async fn update_accounts(
    tx: &mut PgConnection,
    accounts: &BTreeMap<Uuid, Account>,
) -> Result<(), sqlx::Error> {
    let customers: Vec<Uuid> = accounts.keys().copied().collect();
    let available: Vec<i64> = accounts.values().map(|account| account.available).collect();
    let held: Vec<i64> = accounts.values().map(|account| account.held).collect();
    sqlx::query!(
        "update point_account a
         set available = n.available, held = n.held
         from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as n (customer_id, available, held)
         where a.customer_id = n.customer_id
           and (a.available, a.held) is distinct from (n.available, n.held)",
        &customers,
        &available,
        &held,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Writes the entries.
pub(super) async fn insert_entries(tx: &mut PgConnection, entries: &[Posted]) -> Result<(), sqlx::Error> {
    let ids: Vec<Uuid> = entries.iter().map(|posted| posted.entry_id).collect();
    let customers: Vec<Uuid> = entries.iter().map(|posted| posted.customer_id).collect();
    let orders: Vec<Uuid> = entries.iter().map(|posted| posted.order_id).collect();
    let kinds: Vec<&str> = entries.iter().map(|posted| posted.entry.kind.as_str()).collect();
    let references: Vec<&str> = entries.iter().map(|posted| posted.entry.reference.as_str()).collect();
    let amounts: Vec<i64> = entries.iter().map(|posted| posted.entry.signed()).collect();
    let times: Vec<DateTime<Utc>> = entries.iter().map(|posted| posted.at).collect();
    sqlx::query!(
        "insert into point_entry (entry_id, customer_id, order_id, kind, ref, amount, created_at)
         select entry_id, customer_id, order_id, kind, ref, amount, created_at
         from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::bigint[], $7::timestamptz[])
              as e (entry_id, customer_id, order_id, kind, ref, amount, created_at)",
        &ids,
        &customers,
        &orders,
        &kinds as &[&str],
        &references as &[&str],
        &amounts,
        &times,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// A customer's balance; none when the customer has no account yet.
pub(super) async fn account(pool: &PgPool, customer_id: Uuid) -> Result<Option<Account>, sqlx::Error> {
    sqlx::query_as!(Account, "select available, held from point_account where customer_id = $1", customer_id)
        .fetch_optional(pool)
        .await
}

/// A customer's entries, newest first, older than `before`.
pub(super) async fn entries(
    pool: &PgPool,
    customer_id: Uuid,
    before: Option<Uuid>,
    limit: i64,
) -> Result<Vec<EntryRow>, sqlx::Error> {
    sqlx::query_as!(
        EntryRow,
        "select entry_id, order_id, kind, amount, created_at
         from point_entry
         where customer_id = $1 and ($2::uuid is null or entry_id < $2)
         order by entry_id desc
         limit $3",
        customer_id,
        before,
        limit,
    )
    .fetch_all(pool)
    .await
}

/// Every account that is not the sum of its entries, in one snapshot: empty at every commit, or there is a bug or
/// a manual edit. Reads the whole ledger.
///
/// # Errors
/// What the database answers.
pub async fn discrepancies(pool: &PgPool) -> Result<Vec<Discrepancy>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        with ledger as (
            select customer_id,
                   coalesce(sum(amount) filter (where kind <> 'SPEND'), 0)::bigint as available,
                   coalesce(sum(case when kind = 'SPEND' then amount else -amount end)
                            filter (where kind in ('HOLD', 'RELEASE', 'SPEND')), 0)::bigint as held
            from point_entry
            group by customer_id
        )
        select coalesce(a.customer_id, l.customer_id) as "customer_id!",
               coalesce(a.available, 0) as "available!", coalesce(a.held, 0) as "held!",
               coalesce(l.available, 0) as "entries_available!", coalesce(l.held, 0) as "entries_held!"
        from point_account a
        full join ledger l on l.customer_id = a.customer_id
        where (coalesce(a.available, 0), coalesce(a.held, 0))
              is distinct from (coalesce(l.available, 0), coalesce(l.held, 0))
        order by 1
        "#
    )
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Discrepancy {
            customer_id: row.customer_id,
            account: Account { available: row.available, held: row.held },
            entries: Account { available: row.entries_available, held: row.entries_held },
        })
        .collect())
}
