//! Reading and deleting keys. A key is written by the statement of the effect that it guards, see `orders::store`.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::{Answer, Error, Fingerprint, Key, Stored};

/// What makes a key unique.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    /// `sub` of the token.
    pub(crate) principal: Uuid,
    pub(crate) method: &'static str,
    /// Route template.
    pub(crate) route: &'static str,
    pub(crate) key: &'a Key,
}

/// A row to be written together with the effect.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) scope: &'a Scope<'a>,
    pub(crate) fingerprint: &'a Fingerprint,
    pub(crate) answer: &'a Answer,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) expires_at: DateTime<Utc>,
}

/// The answer of a key that is not too old.
pub(crate) async fn find(
    connection: &mut PgConnection,
    scope: &Scope<'_>,
) -> Result<Option<Stored>, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select fingerprint, status, location, body
        from idempotency_key
        where principal = $1 and method = $2 and route = $3 and key = $4 and expires_at > clock_timestamp()
        "#,
        scope.principal,
        scope.method,
        scope.route,
        scope.key.as_str(),
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(|row| Stored {
        fingerprint: row.fingerprint,
        answer: Answer { status: row.status, location: row.location, body: row.body.into() },
    }))
}

/// Deletes at most `limit` keys past their lifetime, the oldest first, and says how many. Skips what another purge or a
/// request with the same key has locked.
pub(super) async fn purge(pool: &PgPool, limit: i64) -> Result<u64, sqlx::Error> {
    let deleted = sqlx::query!(
        r#"
        with expired as (
            select principal, method, route, key
            from idempotency_key
            where expires_at <= clock_timestamp()
            order by expires_at
            limit $1
            for update skip locked
        )
        delete from idempotency_key k
        using expired e
        where k.principal = e.principal and k.method = e.method and k.route = e.route and k.key = e.key
        "#,
        limit,
    )
    .execute(pool)
    .await?;
    Ok(deleted.rows_affected())
}

/// Reads the failure of a statement that writes a key: the lock time-out means that a request with the same key
/// has not ended. Nothing else in such a statement waits for a lock, but for a migration that changes these tables;
/// then too nothing was done and a repetition is right.
pub(crate) fn still_running(error: sqlx::Error) -> Error {
    /// `lock_not_available`
    const LOCK_TIMEOUT: &str = "55P03";
    match error.as_database_error().and_then(|e| e.code()) {
        Some(code) if code == LOCK_TIMEOUT => Error::InProgress,
        _ => Error::Database(error),
    }
}
