//! What must be true of the tables after anything that happened, once nothing waits any more.

mod dead_letters;

use sqlx::PgPool;

/// Databases of the services.
#[derive(Debug, Clone)]
pub struct Pools {
    /// Of the order service.
    pub orders: PgPool,
    /// Of the point service.
    pub points: PgPool,
    /// Of the notification service.
    pub notifications: PgPool,
    /// Of the console.
    pub console: PgPool,
}

/// One invariant and the rows that break it.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The invariant, as a sentence.
    pub rule: &'static str,
    /// Rows that break it; empty: it holds.
    pub broken: Vec<String>,
}

/// Rows that are still on their way: unsent events, unhandled events, unsent notifications, dead letters that the
/// console has not seen, replays without end. Zero means quiet; a dead letter that lies there is quiet too.
///
/// # Errors
/// A database does not answer.
pub async fn waiting(pools: &Pools) -> sqlx::Result<Vec<String>> {
    let unsent =
        "select 'unsent ' || type || ' of ' || aggregateid from messaging.outbox where sent_at is null";
    let mut waiting: Vec<String> = sqlx::query_scalar(unsent).fetch_all(&pools.orders).await?;
    waiting.extend(sqlx::query_scalar::<_, String>(unsent).fetch_all(&pools.points).await?);
    let unnotified = "select 'notification of ' || order_id from notification where sent_at is null";
    waiting.extend(sqlx::query_scalar::<_, String>(unnotified).fetch_all(&pools.notifications).await?);
    let events = events(&pools.orders).await?;
    for (group, pool, events) in [
        ("point", &pools.points, &events),
        ("notification", &pools.notifications, &events),
        ("notification", &pools.notifications, &self::events(&pools.points).await?),
    ] {
        let handled: Vec<String> = sqlx::query_scalar(
            "select message_id::text from messaging.processed_message where consumer_group like '%' || $1",
        )
        .bind(group)
        .fetch_all(pool)
        .await?;
        let handled: std::collections::HashSet<_> = handled.into_iter().collect();
        let open =
            events.iter().filter(|id| !handled.contains(*id)).map(|id| format!("event {id} for {group}"));
        waiting.extend(open);
    }
    waiting.extend(dead_letters::waiting(pools).await?);
    Ok(waiting)
}

async fn events(pool: &PgPool) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar("select id::text from messaging.outbox").fetch_all(pool).await
}

/// Looks at every invariant.
///
/// # Errors
/// A database does not answer.
pub async fn check(pools: &Pools) -> sqlx::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (rule, pool, sql) in rules(pools) {
        let broken = sqlx::query_scalar(sql).fetch_all(pool).await?;
        findings.push(Finding { rule, broken });
    }
    findings.push(earned_as_ordered(pools).await?);
    findings.push(notified_as_published(pools).await?);
    findings.extend(dead_letters::check(pools).await?);
    Ok(findings)
}

fn rules(pools: &Pools) -> [(&'static str, &PgPool, &'static str); 9] {
    let Pools { orders, points, notifications, .. } = pools;
    [
        (
            "every order has exactly one placed event, and one event id",
            orders,
            "select o.id::text from orders o
             left join messaging.outbox e on e.aggregateid = o.id::text and e.type = 'waybill.order.placed'
             group by o.id having count(e.id) <> 1",
        ),
        (
            "no event without its order",
            orders,
            "select e.id::text from messaging.outbox e where not exists (select 1 from orders o where o.id::text = e.aggregateid)",
        ),
        (
            "one order for one idempotency key",
            orders,
            "select key from idempotency_key group by principal, method, route, key having count(*) > 1",
        ),
        (
            "no order without its idempotency key",
            orders,
            "select o.id::text from orders o
             where not exists (select 1 from idempotency_key k where k.location = '/v1/orders/' || o.id::text)",
        ),
        (
            "every account is the sum of its entries",
            points,
            "select a.customer_id::text from point_account a
             left join point_entry e on e.customer_id = a.customer_id
             group by a.customer_id, a.available, a.held having a.available + a.held <> coalesce(sum(e.amount) filter (where e.kind not in ('HOLD', 'RELEASE')), 0)",
        ),
        (
            "one earn for one order, and one points event for it",
            points,
            // Joined as wholes: a look at the outbox for each entry would take hours for a large run.
            "with entry as (
                 select order_id::text as key, count(*) as n from point_entry where kind = 'EARN' group by 1
             ), event as (
                 select aggregateid as key, count(*) as n from messaging.outbox where type = 'waybill.points.earned' group by 1
             )
             select coalesce(entry.key, event.key) from entry full join event on event.key = entry.key
             where coalesce(entry.n, 0) <> 1 or coalesce(event.n, 0) <> 1",
        ),
        (
            "one notification for one event",
            notifications,
            "select message_id::text from notification group by message_id having count(*) > 1",
        ),
        (
            "a notification is sent if its task is done, and only then",
            notifications,
            "select n.notification_id::text from notification n left join messaging.task t on t.id = n.notification_id
             where (n.sent_at is not null) is distinct from (t.status = 'done')",
        ),
        (
            // Order is promised within a topic; what is told of points comes from another one.
            "notifications of an order go out in the order of its events",
            notifications,
            "select b.order_id::text from notification a join notification b on a.order_id = b.order_id and a.seq < b.seq
             where a.sent_at > b.sent_at and (a.kind = 'earned') = (b.kind = 'earned')",
        ),
    ]
}

/// Points by order, as the orders ask for them and as the ledger has them. An order whose event lies in the dead letters
/// has none.
async fn earned_as_ordered(pools: &Pools) -> sqlx::Result<Finding> {
    let dead: Vec<String> = dead_letters::dead_of(&pools.points, "point").await?.into_iter().collect();
    let due: Vec<(String, i64)> = sqlx::query_as(
        "select id::text, floor(earn_base * earn_rate_bp / 10000.0)::bigint from orders
         where status = 'CONFIRMED' and floor(earn_base * earn_rate_bp / 10000.0) > 0
           and id::text not in (select aggregateid from messaging.outbox where id = any($1::text[]::uuid[]))
         order by 1",
    )
    .bind(dead)
    .fetch_all(&pools.orders)
    .await?;
    let earned: Vec<(String, i64)> = sqlx::query_as(
        "select order_id::text, sum(amount)::bigint from point_entry where kind in ('EARN', 'EARN_REVERSAL') group by 1 order by 1",
    )
    .fetch_all(&pools.points)
    .await?;
    Ok(Finding {
        rule: "every confirmed order has earned its points unless its event is a dead letter, and no other",
        broken: difference(&due, &earned),
    })
}

/// Event ids that were published and are no dead letters against those that customers were told of.
async fn notified_as_published(pools: &Pools) -> sqlx::Result<Finding> {
    let dead = dead_letters::dead_of(&pools.notifications, "notification").await?;
    let mut published = Vec::new();
    for pool in [&pools.orders, &pools.points] {
        published.extend(events(pool).await?.into_iter().filter(|id| !dead.contains(id)).map(|id| (id, 1)));
    }
    published.sort();
    let told: Vec<(String, i64)> = sqlx::query_as(
        "select message_id::text, count(*) from notification where sent_at is not null group by 1 order by 1",
    )
    .fetch_all(&pools.notifications)
    .await?;
    Ok(Finding {
        rule: "every event but dead letters reached its customer once in the table, and no other did",
        broken: difference(&published, &told),
    })
}

/// What is in one list only, by name.
fn difference(left: &[(String, i64)], right: &[(String, i64)]) -> Vec<String> {
    let only = |a: &[(String, i64)], b: &[(String, i64)], what: &str| {
        let known: std::collections::HashSet<_> = b.iter().collect();
        a.iter()
            .filter(|row| !known.contains(row))
            .map(|(id, n)| format!("{what} {id} ({n})"))
            .collect::<Vec<_>>()
    };
    [only(left, right, "missing"), only(right, left, "unexpected")].concat()
}
