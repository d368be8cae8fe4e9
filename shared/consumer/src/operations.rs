//! What operators ask of a consumer and tell it, while it runs.

use std::{collections::HashMap, fmt, sync::Arc};

use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    Blocked, ReplaySafety, Status,
    breaker::BreakerState,
    group::Route,
    park::{self, ParkedGauge, ParkedKey},
    store,
};

/// Most messages of one [`check`](Operations::check).
pub const MAX_CHECKED: usize = 500;

/// The operators' handle on a [`Consumer`](crate::Consumer): valid before, during and after its run; cheap to clone.
#[derive(Clone)]
pub struct Operations {
    pool: PgPool,
    routes: Arc<[Arc<Route>]>,
    status: Status,
}

/// A subscription as operators see it. Names are without the installation's prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionState {
    /// Source topic.
    pub topic: String,
    /// Consumer group.
    pub group: String,
    /// `unordered`, `key_ordered` or `partition_ordered`.
    pub order: &'static str,
    /// Delays between attempts, as in the names of retry topics; none where failures are retried in place.
    pub tiers: Vec<String>,
    /// Whether dead letters may be replayed.
    pub replay_safety: ReplaySafety,
    /// The flood breaker of this process.
    pub breaker: BreakerState,
    /// Partitions of this process that make no progress, retry and replay topics included.
    pub blocked: Vec<Blocked>,
}

/// A message of which the state is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Id of the message.
    pub message_id: Uuid,
    /// Its value; `None` is Kafka's null.
    pub value: Option<Vec<u8>>,
}

/// What a group knows of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Id of the message.
    pub message_id: Uuid,
    /// `None`: the inbox does not know it.
    pub inbox: Option<InboxState>,
    /// The replay that resolved it.
    pub replay_id: Option<Uuid>,
    /// Whether the value can be decoded by the release that is running; the stable code when not.
    pub decodes: Result<(), &'static str>,
}

/// A row of the inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InboxState {
    /// The effect is committed.
    Done,
    /// Dead-lettered.
    Dead,
}

/// Why an operation was not done.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// This consumer has no such subscription.
    #[error("no subscription of group {group} to {topic}")]
    Unknown {
        /// Topic asked for.
        topic: String,
        /// Group asked for.
        group: String,
    },
    /// Too much at once.
    #[error("{given} messages, the most are {MAX_CHECKED}")]
    TooMany {
        /// Messages given.
        given: usize,
    },
    /// The database failed.
    #[error("database")]
    Database(#[from] sqlx::Error),
}

impl Operations {
    pub(crate) fn new(pool: PgPool, routes: Vec<Arc<Route>>, status: Status) -> Self {
        Self { pool, routes: routes.into(), status }
    }

    /// Every subscription of this consumer.
    #[must_use]
    pub fn subscriptions(&self) -> Vec<SubscriptionState> {
        let blocked = self.status.blocked();
        let state = |route: &Arc<Route>| {
            let line = &route.line;
            let of_line = |blocked: &&Blocked| {
                blocked.group == *line.consumer_group && line.kind(&blocked.topic).is_some()
            };
            SubscriptionState {
                topic: line.topic.clone(),
                group: line.group.clone(),
                order: line.order.name(),
                tiers: line.tiers(),
                replay_safety: line.replay_safety,
                breaker: line.breaker.state(),
                blocked: blocked.iter().filter(of_line).cloned().collect(),
            }
        };
        self.routes.iter().map(state).collect()
    }

    /// What a group knows of some messages, in the order given: what a replay of each would meet.
    ///
    /// # Errors
    /// No such subscription, more than [`MAX_CHECKED`] messages, or the database failed.
    pub async fn check(
        &self,
        topic: &str,
        group: &str,
        messages: Vec<Check>,
    ) -> Result<Vec<Checked>, OperationError> {
        let route = self.find(topic, group)?;
        if messages.len() > MAX_CHECKED {
            return Err(OperationError::TooMany { given: messages.len() });
        }
        let ids: Vec<_> = messages.iter().map(|message| message.message_id).collect();
        let rows = store::states(&self.pool, &route.line.consumer_group, &ids).await?;
        let rows: HashMap<_, _> = rows.into_iter().map(|row| (row.message_id, row)).collect();
        let checked = |Check { message_id, value }| {
            let row = rows.get(&message_id);
            let state =
                |row: &store::State| if row.outcome == "done" { InboxState::Done } else { InboxState::Dead };
            Checked {
                message_id,
                inbox: row.map(state),
                replay_id: row.and_then(|row| row.replay_id),
                decodes: route.lane.decodes(value.as_deref()),
            }
        };
        Ok(messages.into_iter().map(checked).collect())
    }

    /// Lets a line run again that was stopped because too many messages failed for good in a row. `false`: it was not
    /// stopped in this process.
    ///
    /// # Errors
    /// No such subscription.
    pub fn resume(&self, topic: &str, group: &str) -> Result<bool, OperationError> {
        Ok(self.find(topic, group)?.line.breaker.resume())
    }

    /// What is parked of a subscription, counted now.
    ///
    /// # Errors
    /// No such subscription, or the database failed.
    pub async fn parked(&self, topic: &str, group: &str) -> Result<ParkedGauge, OperationError> {
        let line = &self.find(topic, group)?.line;
        Ok(park::gauge(&self.pool, &line.consumer_group, &line.source).await?)
    }

    /// Parked keys, of one topic or group or of all, the longest parked first, behind the id `after` (0 at first).
    ///
    /// # Errors
    /// No subscription has such a name, or the database failed.
    pub async fn parked_keys(
        &self,
        topic: Option<&str>,
        group: Option<&str>,
        after: i64,
        limit: i64,
    ) -> Result<Vec<ParkedKey>, OperationError> {
        let fits = |asked: Option<&str>, name: &str| asked.is_none_or(|asked| asked == name);
        let of = |route: &&Arc<Route>| fits(topic, &route.line.topic) && fits(group, &route.line.group);
        // A name that no subscription has is a mistake, and not a list of nothing.
        let Some(found) = self.routes.iter().find(of) else {
            let name = |asked: Option<&str>| asked.unwrap_or("any").to_owned();
            return Err(OperationError::Unknown { topic: name(topic), group: name(group) });
        };
        let (group, topic) = (group.map(|_| &*found.line.consumer_group), topic.map(|_| &*found.line.source));
        Ok(park::list(&self.pool, group, topic, limit, after).await?)
    }

    /// Lets a blocked key go on: what is behind its dead letter is handled. `false`: it is not blocked.
    ///
    /// # Errors
    /// No such subscription, or the database failed.
    pub async fn release(
        &self,
        topic: &str,
        group: &str,
        key: &[u8],
        keyless: bool,
    ) -> Result<bool, OperationError> {
        let line = &self.find(topic, group)?.line;
        let released = park::release(&self.pool, &line.consumer_group, &line.source, key, keyless).await?;
        line.wake.notify_one();
        Ok(released)
    }

    fn find(&self, topic: &str, group: &str) -> Result<&Arc<Route>, OperationError> {
        let found = self.routes.iter().find(|route| route.line.topic == topic && route.line.group == group);
        found.ok_or_else(|| OperationError::Unknown { topic: topic.to_owned(), group: group.to_owned() })
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operations").finish_non_exhaustive()
    }
}
