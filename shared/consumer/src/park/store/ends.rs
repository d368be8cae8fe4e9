//! What becomes of a head.

use sqlx::{PgConnection, PgPool, postgres::types::PgInterval};
use uuid::Uuid;

use super::Head;
use crate::{batch::Fallen, redirect::error_text};

/// The head's inbox row. False when the inbox knows the message already.
pub(crate) async fn claim(tx: &mut PgConnection, group: &str, id: Uuid) -> Result<bool, sqlx::Error> {
    let claimed = sqlx::query!(
        "insert into messaging.processed_message (consumer_group, message_id, processed_at, outcome)
         values ($1, $2, messaging.now(), 'done')
         on conflict do nothing",
        group,
        id,
    )
    .execute(tx)
    .await?;
    Ok(claimed.rows_affected() == 1)
}

/// The head is finished; the next one is due at once.
pub(crate) async fn done(tx: &mut PgConnection, key: i64, position: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "with gone as (delete from messaging.parked_message where position = $2)
         update messaging.parked_key set attempts = 0, first_failed_at = null, due_at = messaging.now()
         where id = $1",
        key,
        position,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// The replay is finished and no head any more; it stays until its outcome is told. A first copy that still waits to
/// be buried is not needed any more: what is behind it begins at 0, as behind any head that is finished.
pub(crate) async fn replayed(
    tx: &mut PgConnection,
    key: i64,
    head: &Head,
    group: &str,
    outcome: &str,
    lease: PgInterval,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "with first_copy as (
             delete from messaging.parked_message
             where consumer_group = $4 and message_id = $5 and replay_id is null
             returning position
         ), front as (
             select min(position) as position from messaging.parked_message
             where parked_key_id = $6 and replay_id is null
         ), next as (
             update messaging.parked_key set attempts = 0, first_failed_at = null, due_at = messaging.now()
             from first_copy join front using (position) where id = $6
         )
         update messaging.parked_message set outcome = $2, due_at = messaging.now() + $3::interval
         where position = $1",
        head.position,
        outcome,
        lease,
        group,
        head.message_id,
        key,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// The head has failed and is tried again. Only the first message that is no replay gets here.
pub(crate) async fn retry(
    tx: &mut PgConnection,
    key: i64,
    position: i64,
    attempts: i32,
    due_in: PgInterval,
    (code, text, traceparent): (&str, &str, Option<&str>),
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "with failure as (
             update messaging.parked_message
             set error_code = $5, error_class = 'transient', error_text = $6, failed_at = messaging.now(),
                 failed_traceparent = $7
             where position = $2
         ), clock as materialized (select messaging.now() as now)
         update messaging.parked_key
         set attempts = $3, first_failed_at = coalesce(first_failed_at, clock.now),
             due_at = clock.now + $4::interval
         from clock where id = $1",
        key,
        position,
        attempts,
        due_in,
        code,
        stored(text),
        traceparent,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// The head's schema is unknown. Since when is remembered: the wait for it has an end.
pub(crate) async fn await_schema(
    tx: &mut PgConnection,
    position: i64,
    code: &str,
    text: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "update messaging.parked_message
         set failed_at = case when error_class = 'decode' then failed_at else messaging.now() end,
             error_class = 'decode', error_code = $2, error_text = $3
         where position = $1",
        position,
        code,
        stored(text),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// As [`hold`], where another instance may have had the head since: what it has written stays.
pub(crate) async fn hold_at_least(
    tx: &mut PgConnection,
    key: i64,
    head: &Head,
    time: PgInterval,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "with of_replay as (
             update messaging.parked_message set due_at = greatest(due_at, messaging.now() + $3::interval)
             where position = $2 and replay_id is not null
         )
         update messaging.parked_key set due_at = greatest(due_at, messaging.now() + $3::interval)
         where id = $1 and not $4",
        key,
        head.position,
        time,
        head.replay_id.is_some(),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Nobody looks at the head for so long. Of a replay the time is its own: the messages behind it keep theirs.
pub(crate) async fn hold(
    tx: &mut PgConnection,
    key: i64,
    head: &Head,
    time: PgInterval,
) -> Result<(), sqlx::Error> {
    if head.replay_id.is_some() {
        sqlx::query!(
            "update messaging.parked_message set due_at = messaging.now() + $2::interval where position = $1",
            head.position,
            time,
        )
        .execute(tx)
        .await?;
    } else {
        sqlx::query!(
            "update messaging.parked_key set due_at = messaging.now() + $2::interval where id = $1",
            key,
            time,
        )
        .execute(tx)
        .await?;
    }
    Ok(())
}

/// The failure that parked a message.
pub(crate) async fn note(
    tx: &mut PgConnection,
    group: &str,
    id: Uuid,
    failed: &Fallen,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "update messaging.parked_message
         set error_code = $3, error_class = $4, error_text = $5, failed_at = $6, failed_traceparent = $7
         where consumer_group = $1 and message_id = $2 and replay_id is null and not dead",
        group,
        id,
        failed.code,
        failed.class,
        stored(&failed.text),
        failed.failed_at,
        failed.traceparent,
    )
    .execute(tx)
    .await
    .map(drop)
}

/// A parked message has failed for good: what its dead letter will say.
pub(crate) async fn condemn(
    tx: &mut PgConnection,
    group: &str,
    id: Uuid,
    replay: Option<Uuid>,
    dead: &Fallen,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "with failure as (
             update messaging.parked_message
             set dead = true, error_code = $4, error_class = $5, error_text = $6, failed_at = $7,
                 failed_traceparent = $8
             where consumer_group = $1 and message_id = $2 and replay_id is not distinct from $3
             returning parked_key_id
         )
         update messaging.parked_key k
         set attempts = $9, first_failed_at = coalesce(k.first_failed_at, messaging.now())
         from failure where k.id = failure.parked_key_id and $3 is null",
        group,
        id,
        replay,
        dead.code,
        dead.class,
        stored(&dead.text),
        dead.failed_at,
        dead.traceparent,
        i32::try_from(dead.attempt).unwrap_or(i32::MAX),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// The dead letter is acknowledged: the `dead` row and the end of the head, in the caller's transaction. The key goes
/// on, or is blocked; not when another instance was here before, or when a replay is what failed.
pub(crate) async fn buried(
    tx: &mut PgConnection,
    key: i64,
    group: &str,
    head: &Head,
    state: &str,
) -> Result<(), sqlx::Error> {
    super::wait(&mut *tx, key).await?;
    sqlx::query!(
        "with mark as (
             insert into messaging.processed_message (consumer_group, message_id, processed_at, outcome)
             values ($1, $2, messaging.now(), 'dead')
             on conflict do nothing
         ), gone as (
             delete from messaging.parked_message where position = $3 returning parked_key_id, replay_id
         )
         update messaging.parked_key k
         set attempts = 0, first_failed_at = null, due_at = messaging.now(), state = $4
         from gone where k.id = gone.parked_key_id and gone.replay_id is null",
        group,
        head.message_id,
        head.position,
        state,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// The outcome is acknowledged.
pub(crate) async fn told(pool: &PgPool, position: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "delete from messaging.parked_message where position = $1 and outcome is not null",
        position
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// Ends the park of a key that has no message left, in the caller's transaction. Whether it is empty is asked in a
/// statement behind the lock: a batch that held the key has committed its messages by then. The lock is not waited
/// for: who holds the key is about to append to it, or drains it. False when it did not end.
pub(crate) async fn end(tx: &mut PgConnection, key: i64) -> Result<bool, sqlx::Error> {
    let locked = sqlx::query!(
        "select id from messaging.parked_key where id = $1 and state = 'waiting' for update skip locked",
        key,
    )
    .fetch_optional(&mut *tx)
    .await?;
    if locked.is_none() {
        return Ok(false);
    }
    let ended = sqlx::query!(
        "delete from messaging.parked_key k
         where id = $1 and not exists (select from messaging.parked_message m where m.parked_key_id = k.id)",
        key,
    )
    .execute(tx)
    .await?;
    Ok(ended.rows_affected() == 1)
}

/// Masked and bounded, as in a dead letter; PostgreSQL's text has no zero byte.
fn stored(text: &str) -> String {
    error_text(&text.replace('\0', ""))
}
