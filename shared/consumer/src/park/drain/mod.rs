//! Draining: due keys side by side, each head in a transaction of its own.

mod aside;
mod head;
mod judge;
mod outlet;
mod outside;
mod step;

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, future::FutureExt, stream::FuturesUnordered};
use sqlx::PgPool;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{settings::ParkSettings, store};
use crate::{
    metrics::Metrics,
    redirect::error_text,
    settings::Settings,
    work::{Around, Work},
};
pub(crate) use outlet::Outlet;
pub(crate) use outside::{Begun, Outside, Told};
use step::Step;

/// Keys looked up at once, for each that is drained at once.
const AHEAD: usize = 4;
/// Longest pause after the database has failed.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Before a head is looked at again that failed by nobody's fault, or whose dead letter was refused.
const SOON: Duration = Duration::from_secs(1);

/// Drains the park of one subscription. Every instance runs one, whatever partitions it owns.
pub(crate) struct Drainer<W, O> {
    pub(crate) pool: PgPool,
    /// With prefix, as in the inbox.
    pub(crate) group: String,
    /// Source topic, with prefix.
    pub(crate) topic: Arc<str>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) park: ParkSettings,
    pub(crate) metrics: Metrics,
    pub(crate) work: W,
    pub(crate) outside: O,
    /// Notified by whoever has parked something, or has released a key.
    pub(crate) wake: Arc<Notify>,
    pub(crate) dead_letters: Outlet,
    pub(crate) outcomes: Outlet,
}

/// How a key's turn ended.
enum Turn {
    /// It has nothing to do now.
    Rests,
    /// It may have more to do.
    Goes,
    /// The database failed.
    Failed(anyhow::Error),
}

impl<W: Work, O: Outside> Drainer<W, O> {
    /// Drains until it is stopped; heads under way are then finished. Never fails: it waits for a database that is
    /// away.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        let parallel = self.park.parallel.max(1);
        let mut running = FuturesUnordered::new();
        let mut busy: HashSet<i64> = HashSet::new();
        let mut queue: VecDeque<i64> = VecDeque::new();
        let mut look_at = Instant::now();
        // At most one, and beside the turns: it may wait for a connection that one of them holds.
        let mut looking = FuturesUnordered::new();
        loop {
            while running.len() < parallel
                && let Some(key) = queue.pop_front()
            {
                busy.insert(key);
                running.push(self.turn(key, stop).map(move |turn| (key, turn)).boxed());
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some((key, turn)) = running.next() => {
                    busy.remove(&key);
                    match turn {
                        Turn::Rests => {}
                        Turn::Goes => look_at = Instant::now(),
                        Turn::Failed(error) => {
                            queue.clear();
                            look_at = Instant::now() + self.failed(&error);
                        }
                    }
                }
                Some(found) = looking.next() => {
                    let pause = match found {
                        Ok((keys, any)) => {
                            // A turn that began meanwhile has its key.
                            queue = Vec::into_iter(keys).filter(|key| !busy.contains(key)).collect();
                            if any { self.park.poll } else { self.park.idle_poll }
                        }
                        Err(error) => self.failed(&error),
                    };
                    look_at = Instant::now() + pause;
                }
                // With room, the queue is empty: what was looked up is worked off before the next look.
                () = self.time_to_look(look_at), if running.len() < parallel && looking.is_empty() => {
                    looking.push(self.look(busy.iter().copied().collect()).boxed());
                }
            }
        }
        while running.next().await.is_some() {}
    }

    /// Due keys but those, and whether anything is parked at all.
    async fn look(&self, except: Vec<i64>) -> anyhow::Result<(Vec<i64>, bool)> {
        let most = i64::try_from(self.park.parallel.max(1) * AHEAD).unwrap_or(i64::MAX);
        Ok(store::due(&self.pool, &self.group, &self.topic, &except, most).await?)
    }

    async fn time_to_look(&self, at: Instant) {
        let _ = tokio::time::timeout_at(at, self.wake.notified()).await;
    }

    fn failed(&self, error: &anyhow::Error) -> Duration {
        let error = error_text(&format!("{error:#}"));
        tracing::warn!(group = self.group, topic = &*self.topic, error, "park: database failed");
        let most = self.settings.retry_max.min(PAUSE_MAX).max(self.settings.retry_min);
        rand::random_range(self.settings.retry_min..=most)
    }

    /// Heads of one key, one after the other.
    async fn turn(&self, key: i64, stop: &CancellationToken) -> Turn {
        let (mut panicked, mut heads) = (None, 0);
        // A head that has panicked is tried once more before the turn ends: only the turn remembers it.
        while heads < self.park.turn.max(1) || panicked.is_some() {
            heads += 1;
            // Before a connection is taken: who waits here holds nothing that others need.
            let Some(pass) = stop.run_until_cancelled(self.outside.admit()).await else {
                return Turn::Rests;
            };
            let before = panicked.take();
            let mut step = self.step(key, before, &pass).await;
            if let Ok(Step::Alone) = step {
                if stop.run_until_cancelled(self.outside.alone(&pass)).await.is_none() {
                    return Turn::Rests;
                }
                step = self.step(key, before, &pass).await;
            }
            match step {
                Ok(Step::Next | Step::Alone) => {}
                Ok(Step::Panicked(position)) => panicked = Some(position),
                Ok(Step::Rest) => return Turn::Rests,
                Err(error) => return Turn::Failed(error),
            }
        }
        Turn::Goes
    }

    fn around(&self) -> Around<'_> {
        Around { group: &self.group, metrics: &self.metrics }
    }
}
