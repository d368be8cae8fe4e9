//! A cause of dead letters that can be repaired: a constraint in the points database that refuses one customer, as a
//! migration that goes too far would leave it. No code knows of it.

use sqlx::PgPool;
use uuid::Uuid;

/// Code of the dead letters that it causes: PostgreSQL's `check_violation`.
pub const ERROR_CODE: &str = "sqlstate_23514";
/// Takes the cause away.
pub const REPAIR: &str = "alter table point_account drop constraint if exists point_account_refused_check";

/// The statement that makes every message die that would move this customer's points.
pub fn cause(customer: Uuid) -> String {
    format!(
        "alter table point_account add constraint point_account_refused_check check (customer_id <> '{customer}')"
    )
}

/// Makes the customer one whose messages die.
///
/// # Errors
/// The database refuses; also when another customer is refused already.
pub async fn refuse(points: &PgPool, customer: Uuid) -> sqlx::Result<()> {
    // Safe: made of a UUID and nothing else.
    sqlx::query(sqlx::AssertSqlSafe(cause(customer))).execute(points).await.map(drop)
}

/// Repairs the cause; nothing to do where there is none.
///
/// # Errors
/// The database refuses.
pub async fn repair(points: &PgPool) -> sqlx::Result<()> {
    sqlx::query(REPAIR).execute(points).await.map(drop)
}
