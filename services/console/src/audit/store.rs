//! Every statement of the audit.

use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::{Act, ActResult, Entry};

/// Adds an act, in the transaction of what it does. Gives its id.
pub(crate) async fn add(db: &mut PgConnection, entry: &Entry) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        insert into console.audit (subject, roles, verb, filter, plan_hash, reference, counts)
        values ($1, $2, $3, $4, $5, $6, $7)
        returning audit_id
        "#,
        entry.subject,
        &entry.roles,
        entry.verb,
        entry.filter,
        entry.plan_hash,
        entry.reference,
        serde_json::Value::Object(entry.counts.clone()),
    )
    .fetch_one(db)
    .await
}

/// Adds one result for each of the items.
pub(crate) async fn add_results(
    db: &mut PgConnection,
    audit: i64,
    items: &[Uuid],
    result: &str,
    detail: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        insert into console.audit_result (audit_id, item_id, consumer_group, source_topic, message_id, result, detail)
        select $1, item_id, consumer_group, source_topic, message_id, $3, $4
        from console.item
        where item_id = any($2)
        "#,
        audit,
        items,
        result,
        detail,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Acts before an id, latest first.
pub(super) async fn list(
    pool: &PgPool,
    before: Option<i64>,
    verb: Option<&str>,
    subject: Option<Uuid>,
    limit: i64,
) -> Result<Vec<Act>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select audit_id, at, subject, roles, verb, filter, plan_hash, reference, counts
        from console.audit
        where ($1::bigint is null or audit_id < $1)
            and ($2::text is null or verb = $2)
            and ($3::uuid is null or subject = $3)
        order by audit_id desc
        limit $4
        "#,
        before,
        verb,
        subject,
        limit,
    )
    .fetch_all(pool)
    .await?;
    let act = rows.into_iter().map(|row| Act {
        audit_id: row.audit_id,
        at: row.at,
        subject: row.subject,
        roles: row.roles,
        verb: row.verb,
        filter: row.filter,
        plan_hash: row.plan_hash,
        reference: row.reference,
        counts: row.counts,
        results: None,
    });
    Ok(act.collect())
}

/// One act's results, the first 10,000.
pub(super) async fn results(pool: &PgPool, audit: i64) -> Result<Vec<ActResult>, sqlx::Error> {
    sqlx::query_as!(
        ActResult,
        r#"
        select item_id, consumer_group, source_topic, message_id, result, detail
        from console.audit_result
        where audit_id = $1
        order by item_id
        limit 10000
        "#,
        audit,
    )
    .fetch_all(pool)
    .await
}
