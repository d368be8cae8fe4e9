//! Putting a replay at the front of its key's park.

use std::collections::HashMap;

use sqlx::PgPool;
use uuid::Uuid;

use super::{
    parcel::{Key, Parcel},
    parks::Opening,
    store,
};
use crate::{Message, settings::Settings, store::Lease};

/// Parks replays before every message that waits, in their own order, each with the id of its replay; a key that is
/// not parked becomes so. Returns after the commit: their offsets may move then. A replay that is parked already is
/// left as it is.
///
/// # Errors
/// The database failed; nothing is parked.
pub(crate) async fn park_replay<E>(
    pool: &PgPool,
    settings: &Settings,
    group: &str,
    topic: &str,
    replays: &[(&Message<E>, Uuid)],
) -> Result<(), sqlx::Error> {
    if replays.is_empty() {
        return Ok(());
    }
    let parcels: Vec<_> =
        replays.iter().map(|(message, replay_id)| (Parcel::of(*message), *replay_id)).collect();
    let mut lease = Lease::acquire(pool).await?;
    let mut tx = lease.begin(settings).await?;
    let mut keys: Vec<Key> = parcels.iter().map(|(parcel, _)| parcel.key.clone()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut held = HashMap::new();
    loop {
        held.extend(store::parked(&mut tx, group, topic, &keys).await?);
        let missing: Vec<_> = parcels
            .iter()
            .filter(|(parcel, _)| !held.contains_key(&parcel.key))
            .map(|(parcel, _)| {
                (
                    parcel.clone(),
                    Opening::Retry { attempts: 0, due_in: std::time::Duration::ZERO, failed: None },
                )
            })
            .collect();
        if missing.is_empty() {
            break;
        }
        store::open(&mut tx, group, topic, &missing.iter().collect::<Vec<_>>()).await?;
    }
    let rows: Vec<_> = parcels
        .iter()
        .filter_map(|(parcel, replay_id)| Some((*held.get(&parcel.key)?, parcel, *replay_id)))
        .collect();
    store::append_replays(&mut tx, group, &rows).await?;
    tx.commit().await?;
    lease.release();
    Ok(())
}
