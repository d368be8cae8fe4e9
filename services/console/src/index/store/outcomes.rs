//! What consumers say, and what it makes of the runs that sent the messages.

use std::collections::HashMap;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::State;
use crate::index::letter::Letter;
use crate::index::merge::Told;
use crate::index::record::Raw;

/// Keeps what consumers said; the better word stays.
pub(in crate::index) async fn add_outcomes(
    tx: &mut PgConnection,
    told: &[(Uuid, Told)],
) -> Result<(), sqlx::Error> {
    if told.is_empty() {
        return Ok(());
    }
    let items: Vec<_> = told.iter().map(|(item, _)| *item).collect();
    let replays: Vec<_> = told.iter().map(|(_, told)| told.replay_id).collect();
    let outcomes: Vec<_> = told.iter().map(|(_, told)| word(told).to_owned()).collect();
    let times: Vec<_> = told.iter().map(|(_, told)| told.occurred_at).collect();
    sqlx::query!(
        r#"
        insert into console.outcome as o (item_id, replay_id, outcome, occurred_at)
        select t.item_id, t.replay_id, t.outcome, t.occurred_at
        from unnest($1::uuid[], $2::uuid[], $3::text[], $4::timestamptz[]) as t (item_id, replay_id, outcome, occurred_at)
        on conflict on constraint outcome_pkey do update set
            outcome = excluded.outcome,
            occurred_at = excluded.occurred_at
        where o.outcome = 'already_processed' and excluded.outcome = 'resolved'
        "#,
        &items,
        &replays,
        &outcomes,
        &times,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Everything that was said of these items.
pub(in crate::index) async fn outcomes_of(
    tx: &mut PgConnection,
    items: &[Uuid],
) -> Result<HashMap<Uuid, Vec<Told>>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"select item_id, replay_id, outcome, occurred_at from console.outcome where item_id = any($1)"#,
        items,
    )
    .fetch_all(tx)
    .await?;
    let mut words: HashMap<Uuid, Vec<Told>> = HashMap::new();
    for row in rows {
        words.entry(row.item_id).or_default().push(Told {
            replay_id: row.replay_id,
            resolved: row.outcome == "resolved",
            occurred_at: row.occurred_at,
        });
    }
    Ok(words)
}

/// A dead letter that carries a replay's id is that replay's failure, unless the consumer has said better of it.
pub(in crate::index) async fn settle_failed(
    tx: &mut PgConnection,
    fresh: &[&(Raw, Letter)],
) -> Result<(), sqlx::Error> {
    let failed: Vec<_> = fresh.iter().filter_map(|(_, letter)| Some((letter.replay_id?, letter))).collect();
    if failed.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        r#"
        update console.replay_item i
        set state = 'failed_again', settled_at = clock_timestamp(), detail = t.error_code
        from unnest($1::uuid[], $2::uuid[], $3::text[]) as t (replay_id, item_id, error_code)
        where i.replay_id = t.replay_id and i.item_id = t.item_id
            and i.state in ('pending', 'sending', 'sent', 'failed', 'no_outcome', 'stopped')
        "#,
        &failed.iter().map(|(replay, _)| *replay).collect::<Vec<_>>(),
        &failed.iter().map(|(_, letter)| letter.item_id).collect::<Vec<_>>(),
        &failed.iter().map(|(_, letter)| letter.error_code.clone()).collect::<Vec<_>>(),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// What consumers said, in the runs that sent it.
pub(in crate::index) async fn settle_told(
    tx: &mut PgConnection,
    told: &[(Uuid, Told)],
) -> Result<(), sqlx::Error> {
    if told.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        r#"
        update console.replay_item i
        set state = t.outcome, settled_at = clock_timestamp(), detail = null
        from unnest($1::uuid[], $2::uuid[], $3::text[]) as t (replay_id, item_id, outcome)
        where i.replay_id = t.replay_id and i.item_id = t.item_id
            and i.state not in ('resolved', 'refused')
            and (i.state <> 'already_processed' or t.outcome = 'resolved')
        "#,
        &told.iter().map(|(_, told)| told.replay_id).collect::<Vec<_>>(),
        &told.iter().map(|(item, _)| *item).collect::<Vec<_>>(),
        &told.iter().map(|(_, told)| word(told).to_owned()).collect::<Vec<_>>(),
    )
    .execute(tx)
    .await?;
    Ok(())
}

fn word(told: &Told) -> &'static str {
    if told.resolved { State::Resolved.name() } else { State::AlreadyProcessed.name() }
}
