//! The proof that a key's aggregate is held by this transaction.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::{Map, Query};
use sqlx::{IntoArguments, PgConnection, Postgres};

/// Proof that the transaction holds the row (or the advisory lock) of one key.
///
/// Rule: order per key is made at write time. The aggregate's row is inserted, updated or locked first, and the
/// event is appended after it; then `seq` order is the state's order, and no reader needs a gate. Appended before
/// the lock, two writers of one key can draw their `seq` in the opposite order of their states.
///
/// Comes only from [`inserted`], [`updated`], [`lock`], [`lock_many`] and [`serialize`]. It must be used in the transaction that
/// made it: the lock ends with that transaction.
#[derive(Debug)]
pub struct Locked {
    key: String,
}

impl Locked {
    /// The key that is held.
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// Runs the statement that inserts the aggregate's row, and gives the proof for its key.
///
/// `None` when nothing was inserted (`on conflict do nothing`): then somebody else holds or held the row.
///
/// # Errors
/// What the database answers.
pub async fn inserted<'q, A>(
    tx: &mut PgConnection,
    key: impl Into<String>,
    insert: Query<'q, Postgres, A>,
) -> Result<Option<Locked>, sqlx::Error>
where
    A: IntoArguments<Postgres> + Send + 'q,
{
    updated(tx, key, insert).await
}

/// Runs the statement that updates the aggregate's row, and gives the proof for its key. `None` when no row
/// matched the statement's condition: nothing is held then.
///
/// # Errors
/// What the database answers.
pub async fn updated<'q, A>(
    tx: &mut PgConnection,
    key: impl Into<String>,
    update: Query<'q, Postgres, A>,
) -> Result<Option<Locked>, sqlx::Error>
where
    A: IntoArguments<Postgres> + Send + 'q,
{
    let done = update.execute(tx).await?;
    Ok((done.rows_affected() > 0).then(|| Locked { key: key.into() }))
}

/// Runs a `select … for update` (or an `insert`/`update … returning`) and gives what it read together with the
/// proof. `None` when there is no such row.
///
/// # Errors
/// What the database answers.
pub async fn lock<'q, T, F>(
    tx: &mut PgConnection,
    key: impl Into<String>,
    select_for_update: Map<'q, Postgres, F, PgArguments>,
) -> Result<Option<(T, Locked)>, sqlx::Error>
where
    F: FnMut(PgRow) -> Result<T, sqlx::Error> + Send,
    T: Send + Unpin,
{
    let row = select_for_update.fetch_optional(tx).await?;
    Ok(row.map(|row| (row, Locked { key: key.into() })))
}

/// [`lock`] for a batch: one statement, and a proof for each row that it gives; `key` tells a row's key. Keys
/// without a row are missing from the answer.
///
/// Rule: the statement sorts (`… order by id for update`). Rows are locked in that order, so two batches with keys
/// in common wait for each other; unsorted, they can deadlock.
///
/// # Errors
/// What the database answers.
pub async fn lock_many<'q, T, F>(
    tx: &mut PgConnection,
    select_for_update: Map<'q, Postgres, F, PgArguments>,
    key: impl Fn(&T) -> String,
) -> Result<Vec<(T, Locked)>, sqlx::Error>
where
    F: FnMut(PgRow) -> Result<T, sqlx::Error> + Send,
    T: Send + Unpin,
{
    let rows = select_for_update.fetch_all(tx).await?;
    let proven = |row| {
        let key = key(&row);
        (row, Locked { key })
    };
    Ok(rows.into_iter().map(proven).collect())
}

/// Takes a transaction-scoped advisory lock on a key that has no row to lock. Call it *before* the state is read:
/// what is read earlier may be older than what another writer of the key has appended since. For the same reason the
/// transaction must be `read committed`: in stricter ones this very call fixes what later statements see.
///
/// Every writer of the key must take the key this way; it does not exclude those who lock a row.
///
/// # Errors
/// What the database answers.
pub async fn serialize(tx: &mut PgConnection, key: impl Into<String>) -> Result<Locked, sqlx::Error> {
    let key = key.into();
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended('waybill.outbox:' || $1::text, 0))", key)
        .execute(tx)
        .await?;
    Ok(Locked { key })
}
