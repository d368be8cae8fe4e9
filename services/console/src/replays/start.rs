//! Starting, cancelling and showing runs.

use sqlx::PgPool;
use uuid::Uuid;
use waybill_service::postgres;

use super::view::{Replay, ReplayRequest};
use super::{Error, store};
use crate::api::{Api, Operator};
use crate::audit::{self, Entry};
use crate::plans;

/// Takes the plan's letters and makes a run of them; some process drives it.
pub(super) async fn start(api: &Api, operator: &Operator, request: &ReplayRequest) -> Result<Replay, Error> {
    let replay_id = Uuid::now_v7();
    let mut tx = postgres::begin(&api.pool).await?;
    let plan = plans::load(&mut tx, request.plan_id).await?;
    if plan.reconcile_first && !request.acknowledge_reconcile {
        return Err(Error::ReconcileFirst);
    }
    store::insert(&mut tx, replay_id, operator.principal.customer, request).await?;
    let (cap, timeout) = (api.settings.loop_cap, api.settings.outcome_timeout);
    let taken = store::take(&mut tx, replay_id, request.plan_id, cap, timeout).await?;
    let refused = store::refuse_rest(&mut tx, replay_id, request.plan_id, cap).await?;
    let entry = Entry::new(&operator.principal, "replay", request)
        .plan(&plan.hash)
        .reference(replay_id)
        .count("taken", taken)
        .count("refused", refused);
    audit::add(&mut tx, &entry).await?;
    tx.commit().await?;
    api.runs.wake();
    find(&api.pool, replay_id).await
}

/// A run with its first troubles.
pub(super) async fn find(pool: &PgPool, id: Uuid) -> Result<Replay, Error> {
    let mut replay = store::find(pool, id).await?.ok_or(Error::NotFound)?;
    replay.troubles = store::troubles(pool, id).await?;
    Ok(replay)
}

/// Asks a run to stop at its next record.
pub(super) async fn cancel(api: &Api, operator: &Operator, id: Uuid) -> Result<Replay, Error> {
    let mut tx = postgres::begin(&api.pool).await?;
    if !store::request_cancel(&mut tx, id).await? {
        drop(tx);
        find(&api.pool, id).await?;
        return Err(Error::Ended);
    }
    let entry = Entry::new(&operator.principal, "cancel", &serde_json::json!({})).reference(id);
    audit::add(&mut tx, &entry).await?;
    tx.commit().await?;
    api.runs.wake();
    find(&api.pool, id).await
}
