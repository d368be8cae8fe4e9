//! For operators, metrics and the cap.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::{ParkSettings, store};

/// Shortest time between two counts.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// The share of the time that counting may take is one in so many.
const COUNT_SHARE: u32 = 20;

/// A parked key, as an operator sees it.
#[derive(Debug, Clone)]
pub struct ParkedKey {
    /// Order of the list, and where its next page begins.
    pub id: i64,
    /// With prefix.
    pub consumer_group: String,
    /// Source topic, with prefix.
    pub topic: String,
    /// The key; of a message without one, the bytes of its id.
    pub key: Vec<u8>,
    /// Whether the message has no key.
    pub keyless: bool,
    /// `waiting` or `blocked`.
    pub state: String,
    /// Failed attempts of the first message that is not a replay.
    pub attempts: i32,
    /// When it is tried next.
    pub due_at: DateTime<Utc>,
    /// Since when the key is parked.
    pub parked_at: DateTime<Utc>,
    /// Messages that are parked, replays and their outcomes that are to be told included.
    pub messages: i64,
    /// What comes next.
    pub head: Option<Uuid>,
    /// Stable code of its last failure.
    pub error_code: Option<String>,
}

/// What is parked of one subscription.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParkedGauge {
    /// Parked keys.
    pub keys: i64,
    /// Of those, blocked ones.
    pub blocked: i64,
    /// Parked messages.
    pub messages: i64,
    /// Since the longest parked key was parked; 0 when there is none.
    pub oldest_seconds: f64,
}

/// Keys of a group and topic (with prefix; `None` is all), the longest parked first, behind the id `after` (0 at
/// first).
///
/// # Errors
/// The database failed.
pub(crate) async fn list(
    pool: &PgPool,
    group: Option<&str>,
    topic: Option<&str>,
    limit: i64,
    after: i64,
) -> Result<Vec<ParkedKey>, sqlx::Error> {
    store::list(pool, group, topic, limit, after).await
}

/// Lets a blocked key go on. False when there is none such.
///
/// # Errors
/// The database failed.
pub(crate) async fn release(
    pool: &PgPool,
    group: &str,
    topic: &str,
    key: &[u8],
    keyless: bool,
) -> Result<bool, sqlx::Error> {
    store::release(pool, group, topic, key, keyless).await
}

/// Counts what is parked: an index scan over it, so for a metric's interval and not for each batch.
///
/// # Errors
/// The database failed.
pub(crate) async fn gauge(pool: &PgPool, group: &str, topic: &str) -> Result<ParkedGauge, sqlx::Error> {
    store::gauge(pool, group, topic).await
}

/// Whether more may be parked, counted at most each second: an old answer lets one batch more in, no harm done. What
/// is never remembered is whether a key is parked.
#[derive(Debug, Default)]
pub(crate) struct Room(Mutex<Option<(Instant, bool)>>);

impl Room {
    /// # Errors
    /// The database failed.
    pub(crate) async fn is_left(
        &self,
        pool: &PgPool,
        group: &str,
        topic: &str,
        settings: &ParkSettings,
    ) -> Result<bool, sqlx::Error> {
        let mut last = self.0.lock().await;
        if let Some((until, left)) = *last
            && Instant::now() < until
        {
            return Ok(left);
        }
        let started = Instant::now();
        let left = !store::full(pool, group, topic, settings.max_keys, settings.max_rows).await?;
        *last = Some((Instant::now() + COUNT_EVERY.max(started.elapsed() * COUNT_SHARE), left));
        Ok(left)
    }
}
