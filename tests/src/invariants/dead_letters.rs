//! What must be true of dead letters: in the consumers' inboxes, in what they have parked, and in the console's index.

use std::collections::HashSet;

use sqlx::PgPool;

use super::{Finding, Pools, difference};

/// Dead letters that the index does not know yet, replays without outcome, and messages that are parked.
pub(super) async fn waiting(pools: &Pools) -> sqlx::Result<Vec<String>> {
    // A dead letter is on its topic before its row is in the inbox: either may be seen first.
    let dead = difference(&dead(pools).await?, &unsettled(pools).await?);
    let mut waiting: Vec<String> = dead.into_iter().map(|letter| format!("dead letter {letter}")).collect();
    waiting.extend(
        sqlx::query_scalar::<_, String>(
            "select state || ' letter ' || item_id from console.item where state in ('planned', 'sent')
             union all select 'replay ' || replay_id from console.replay where state = 'running'",
        )
        .fetch_all(&pools.console)
        .await?,
    );
    for pool in consumers(pools) {
        let parked =
            "select 'parked ' || m.message_id || ' for ' || m.consumer_group from messaging.parked_message m
                      join messaging.parked_key k on k.id = m.parked_key_id where k.state = 'waiting'";
        waiting.extend(sqlx::query_scalar::<_, String>(parked).fetch_all(pool).await?);
    }
    Ok(waiting)
}

/// Looks at every invariant of dead letters.
pub(super) async fn check(pools: &Pools) -> sqlx::Result<Vec<Finding>> {
    Ok(vec![
        indexed(pools).await?,
        resolved(pools).await?,
        parked(pools).await?,
        ended(&pools.console).await?,
        audited(&pools.console).await?,
    ])
}

/// Ids of events that are dead for a group, by the end of its name.
pub(super) async fn dead_of(pool: &PgPool, group: &str) -> sqlx::Result<HashSet<String>> {
    let sql = "select message_id::text from messaging.processed_message
               where outcome = 'dead' and consumer_group like '%' || $1";
    Ok(sqlx::query_scalar(sql).bind(group).fetch_all(pool).await?.into_iter().collect())
}

fn consumers(pools: &Pools) -> [&PgPool; 2] {
    [&pools.points, &pools.notifications]
}

/// Group and message id of all that inboxes have as dead.
async fn dead(pools: &Pools) -> sqlx::Result<Vec<(String, i64)>> {
    inboxes(pools, "select consumer_group || ' ' || message_id, 1::bigint from messaging.processed_message where outcome = 'dead'").await
}

async fn inboxes(pools: &Pools, sql: &'static str) -> sqlx::Result<Vec<(String, i64)>> {
    let mut rows = Vec::new();
    for pool in consumers(pools) {
        rows.extend(sqlx::query_as::<_, (String, i64)>(sql).fetch_all(pool).await?);
    }
    Ok(rows)
}

/// Group and message id of all letters in the console that nobody has handled.
async fn unsettled(pools: &Pools) -> sqlx::Result<Vec<(String, i64)>> {
    let sql = "select consumer_group || ' ' || message_id, 1::bigint from console.item
               where state not in ('resolved', 'already_processed')";
    sqlx::query_as(sql).fetch_all(&pools.console).await
}

async fn indexed(pools: &Pools) -> sqlx::Result<Finding> {
    Ok(Finding {
        rule: "what is dead in an inbox is an unsettled letter in the console, and no other is",
        broken: difference(&dead(pools).await?, &unsettled(pools).await?),
    })
}

async fn resolved(pools: &Pools) -> sqlx::Result<Finding> {
    let done = "select consumer_group || ' ' || message_id || ' by ' || replay_id, 1::bigint
                from messaging.processed_message where outcome = 'done' and replay_id is not null";
    let told = "select i.consumer_group || ' ' || i.message_id || ' by ' || o.replay_id, count(*)
                from console.outcome o join console.item i on i.item_id = o.item_id
                where o.outcome = 'resolved' group by 1";
    let told: Vec<(String, i64)> = sqlx::query_as(told).fetch_all(&pools.console).await?;
    Ok(Finding {
        rule: "what a replay has resolved was done by that replay, once, and no other was",
        broken: difference(&inboxes(pools, done).await?, &told),
    })
}

async fn parked(pools: &Pools) -> sqlx::Result<Finding> {
    let sql = "select m.message_id || ' for ' || m.consumer_group, 1::bigint from messaging.parked_message m
               join messaging.processed_message p
                 on p.consumer_group = m.consumer_group and p.message_id = m.message_id and p.outcome = 'done'
               where m.replay_id is null";
    let broken = inboxes(pools, sql).await?.into_iter().map(|(name, _)| name).collect();
    Ok(Finding { rule: "nothing is parked that its group has finished with", broken })
}

async fn ended(console: &PgPool) -> sqlx::Result<Finding> {
    let sql = "select r.replay_id || ' holds ' || i.item_id from console.replay r
               join console.replay_item i on i.replay_id = r.replay_id
               where r.state <> 'running' and i.state in ('pending', 'sending')";
    let broken = sqlx::query_scalar(sql).fetch_all(console).await?;
    Ok(Finding { rule: "a replay that has ended holds no letter", broken })
}

async fn audited(console: &PgPool) -> sqlx::Result<Finding> {
    let sql = "select r.replay_id::text from console.replay r
               left join console.audit a on a.reference = r.replay_id and a.verb = 'replay' and a.subject = r.started_by
               group by r.replay_id having count(a.audit_id) <> 1";
    let broken = sqlx::query_scalar(sql).fetch_all(console).await?;
    Ok(Finding { rule: "every replay is in the audit, by who started it", broken })
}
