//! The parks of one batch transaction: which keys are parked, what joins them, and what opens a new one.

use std::collections::{HashMap, HashSet};

use sqlx::{PgConnection, PgPool};

use super::{
    parcel::{Key, Parcel},
    settings::interval,
    store,
};
use crate::{Message, batch::Fallen, settings::Settings, store::Lease};

/// Why a key is parked, and how long its head waits.
#[derive(Debug)]
pub(crate) enum Opening {
    /// It is tried again, by [`ParkSettings::delay`](super::ParkSettings::delay).
    Retry {
        /// Attempts made.
        attempts: u32,
        /// Until the next one.
        due_in: std::time::Duration,
        /// The failure, for operators and for the link of the next attempt's span; `None`: it has not been tried.
        failed: Option<Fallen>,
    },
    /// It has failed for good. The drainer publishes the dead letter, and the key's next messages wait for that. Were
    /// it published behind the commit, a crash in between would have it handled once more behind its successors.
    Dead(Fallen),
}

/// What one transaction knows and does about parked keys. Never kept longer: in the next transaction the answer may
/// be another.
///
/// Read behind the claim, it holds the keys that are parked so that no drainer ends their park meanwhile. The caller
/// hands over every message of a key that it [`holds`](Self::holds), and every one that failed; the keys of those are
/// held from then on. [`write`](Self::write) comes last in the transaction, outside of savepoints.
#[derive(Debug)]
pub(crate) struct Parks<'t> {
    group: &'t str,
    topic: &'t str,
    held: HashMap<Key, i64>,
    opened: HashSet<Key>,
    openings: Vec<(Parcel, Opening)>,
    /// In the order they came.
    parcels: Vec<Parcel>,
}

impl<'t> Parks<'t> {
    /// Asks the database, and locks what is there until the transaction ends.
    ///
    /// `group` and `topic` with prefix, the topic being the source's; the messages are those just claimed.
    pub(crate) async fn read<E>(
        tx: &mut PgConnection,
        group: &'t str,
        topic: &'t str,
        messages: &[Message<E>],
    ) -> Result<Self, sqlx::Error> {
        let keys: HashSet<Key> = messages.iter().map(Key::of).collect();
        let held = if keys.is_empty() {
            HashMap::new()
        } else {
            store::parked(tx, group, topic, &keys.into_iter().collect::<Vec<_>>()).await?
        };
        Ok(Self { group, topic, held, opened: HashSet::new(), openings: Vec::new(), parcels: Vec::new() })
    }

    /// Whether the message must not be handled here, because an earlier one of its key is not finished.
    pub(crate) fn holds<E>(&self, message: &Message<E>) -> bool {
        let key = Key::of(message);
        self.held.contains_key(&key) || self.opened.contains(&key)
    }

    /// The message joins the park of its key.
    pub(crate) fn divert<E>(&mut self, message: &Message<E>) {
        self.parcels.push(Parcel::of(message));
    }

    /// The message has failed, and nothing of it is left in the transaction: it parks its key.
    pub(crate) fn open<E>(&mut self, message: &Message<E>, opening: Opening) {
        let parcel = Parcel::of(message);
        self.opened.insert(parcel.key.clone());
        self.parcels.push(parcel.clone());
        self.openings.push((parcel, opening));
    }

    /// Whether [`write`](Self::write) has anything to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.parcels.is_empty()
    }

    /// Parks what was handed over, and takes back its inbox rows. Returns how many messages were not parked already.
    pub(crate) async fn write(&mut self, tx: &mut PgConnection) -> Result<u64, sqlx::Error> {
        if self.parcels.is_empty() {
            return Ok(0);
        }
        // A key may have been opened by another transaction since it was asked for, from another partition: then the
        // message joins that park.
        let mut missing: Vec<_> =
            self.openings.iter().filter(|(parcel, _)| !self.held.contains_key(&parcel.key)).collect();
        let mut joins = false;
        while !missing.is_empty() {
            let opened = store::open(tx, self.group, self.topic, &missing).await?;
            joins |= usize::try_from(opened).is_ok_and(|opened| opened < missing.len());
            let keys: Vec<_> = missing.iter().map(|(parcel, _)| parcel.key.clone()).collect();
            self.held.extend(store::parked(tx, self.group, self.topic, &keys).await?);
            // Ended again between the two statements: it is free to be opened.
            missing.retain(|(parcel, _)| !self.held.contains_key(&parcel.key));
        }
        let mut rows = Vec::with_capacity(self.parcels.len());
        for parcel in &self.parcels {
            rows.push((*self.held.get(&parcel.key).ok_or_else(not_held)?, parcel));
        }
        let added = store::append(tx, self.group, &rows).await?;
        for (parcel, opening) in &self.openings {
            let id = parcel.id.as_uuid();
            match opening {
                Opening::Dead(dead) => store::condemn(tx, self.group, id, None, dead).await?,
                Opening::Retry { attempts, due_in, failed } => {
                    if let Some(failed) = failed {
                        store::note(tx, self.group, id, failed).await?;
                    }
                    if joins && let Some(key) = self.held.get(&parcel.key) {
                        store::failed(tx, *key, id, *attempts, interval(*due_in)).await?;
                    }
                }
            }
        }
        let ids: Vec<_> = self.parcels.iter().map(|parcel| parcel.id.as_uuid()).collect();
        crate::store::unclaim(tx, self.group, &ids).await?;
        Ok(added)
    }
}

/// Parks one message that failed in a transaction of its own, which is gone. Returns after the commit. In between
/// another instance may have finished the message, or parked its key: then it is left alone, or joins.
///
/// # Errors
/// The database failed; nothing is parked.
pub(crate) async fn park_failed<E>(
    pool: &PgPool,
    settings: &Settings,
    group: &str,
    topic: &str,
    message: &Message<E>,
    opening: Opening,
) -> Result<(), sqlx::Error> {
    let mut lease = Lease::acquire(pool).await?;
    let mut tx = lease.begin(settings).await?;
    // Waits for whoever has claimed it, as a batch does.
    if store::claim(&mut tx, group, message.id.as_uuid()).await? {
        let mut parks = Parks::read(&mut tx, group, topic, std::slice::from_ref(message)).await?;
        if parks.holds(message) {
            parks.divert(message);
        } else {
            parks.open(message, opening);
        }
        parks.write(&mut tx).await?;
    }
    tx.commit().await?;
    lease.release();
    Ok(())
}

/// A fault of the caller, which must not lose the message.
fn not_held() -> sqlx::Error {
    sqlx::Error::Protocol("a message joins the park of a key that is not parked".to_owned())
}
