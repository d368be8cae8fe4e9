//! Every statement of archiving.

use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

/// Letters with the dead letter that each stands for now.
pub(super) async fn versions(db: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<(Uuid, i64)>, sqlx::Error> {
    let rows = sqlx::query!(r#"select item_id, record_id from console.item where item_id = any($1)"#, ids)
        .fetch_all(db)
        .await?;
    Ok(rows.into_iter().map(|row| (row.item_id, row.record_id)).collect())
}

/// Locks letters in the order of their ids, so that two acts do not wait for each other.
pub(super) async fn lock(db: &mut PgConnection, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"select 1 as "one!" from console.item where item_id = any($1) order by item_id for update"#,
        ids
    )
    .fetch_all(db)
    .await?;
    Ok(())
}

/// Puts away those that nobody holds and that have not died again since they were selected. Gives their ids.
pub(super) async fn archive(
    db: &mut PgConnection,
    selected: &[(Uuid, i64)],
    reason: &str,
    outcome_timeout: Duration,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let microseconds = i64::try_from(outcome_timeout.as_micros()).unwrap_or(i64::MAX);
    sqlx::query_scalar!(
        r#"
        update console.item i
        set state = 'archived', archived_reason = $3, settled_at = clock_timestamp()
        from unnest($1::uuid[], $2::bigint[]) as t (item_id, record_id)
        where i.item_id = t.item_id and i.record_id = t.record_id
            and (i.state in ('open', 'failed_again')
                or (i.state = 'sent' and i.sent_at < clock_timestamp() - $4::interval))
        returning i.item_id
        "#,
        &selected.iter().map(|letter| letter.0).collect::<Vec<_>>(),
        &selected.iter().map(|letter| letter.1).collect::<Vec<_>>(),
        reason,
        PgInterval { months: 0, days: 0, microseconds },
    )
    .fetch_all(db)
    .await
}

/// Brings them back to where they stood. Gives their ids.
pub(super) async fn restore(db: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        update console.item
        set state = case when died_in is null then 'open' else 'failed_again' end,
            archived_reason = null,
            settled_at = null
        where item_id = any($1) and state = 'archived'
        returning item_id
        "#,
        ids,
    )
    .fetch_all(db)
    .await
}
