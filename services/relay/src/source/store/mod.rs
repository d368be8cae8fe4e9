//! All SQL of a source.
//!
//! Three pools: the second one, for marks and purges, does not wait for the disk (`synchronous_commit=off`). A mark
//! lost with the server means that a row is sent again; a lost lease would mean two owners, so leases do wait.
//! They have a pool of their own: a table that is locked elsewhere may stop every other statement, never a renewal.

mod fetch;
mod floor;
mod lease;
pub mod operate;
mod outcome;
mod republish;
mod session;
mod status;
mod survey;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool};
use tokio::time::timeout;
use uuid::Uuid;

pub(crate) use self::fetch::{Ask, Fetched, Listed, Still};
pub(crate) use self::floor::{Ceiling, Lowest};
pub(crate) use self::outcome::Purged;
pub(crate) use self::republish::Filter;
pub use self::session::Pooler;
pub use self::status::{Blocked, Dead, Owned, Status, Unsent};
pub use self::survey::Sample;
use super::row::RowId;

const CONNECT: Duration = Duration::from_secs(5);
const ACQUIRE: Duration = Duration::from_secs(3);
/// A connection idle for less is handed out without a ping.
const FRESH: Duration = Duration::from_secs(1);
/// Connections for fetches and outcomes; one of each may run at the same time.
const MAIN: u32 = 6;
/// Connections for marks and purges.
const LAZY: u32 = 2;
/// Connections for leases.
const KEEP: u32 = 2;

/// Settings of every session.
///
/// All statements of the relay go by an index, whatever the statistics say: between a backlog and an empty table
/// they are always wrong. Measured with 100,000 unsent rows: the generic plan of a fetch read them all by bitmap
/// and sorted them, 209 ms instead of 3 ms.
pub const SESSION: [(&str, &str); 8] = [
    ("statement_timeout", "5s"),
    ("lock_timeout", "2s"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    // A penalty on sequential scans would else make every cost high enough to be compiled.
    ("jit", "off"),
];

/// The database of a source. Cheap to clone; connects when first used, and again whenever needed.
#[derive(Debug, Clone)]
pub struct Store {
    main: PgPool,
    lazy: PgPool,
    keep: PgPool,
    pooler: Pooler,
    connections: Arc<AtomicU64>,
}

/// Why a round with the database failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is a standby: its rows are old, and it cannot keep leases.
    #[error("the database is a standby; a relay needs the primary")]
    Standby,
    /// No connection can be made.
    #[error("database {database:?} at {host}:{port} cannot be reached: {source}")]
    Unreachable {
        /// Host.
        host: String,
        /// Port.
        port: u16,
        /// Database.
        database: String,
        /// What the driver says.
        #[source]
        source: sqlx::Error,
    },
    /// It refused.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Makes one connection, without a pool, which would only say that its time ran out.
///
/// # Errors
/// [`Error::Unreachable`].
pub async fn connect(options: &PgConnectOptions) -> Result<PgConnection, Error> {
    let connected = timeout(CONNECT, options.connect()).await;
    connected.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(|source| Error::Unreachable {
        host: options.get_host().to_owned(),
        port: options.get_port(),
        database: options.get_database().unwrap_or_default().to_owned(),
        source,
    })
}

impl Store {
    /// Pools over a database. Nothing is connected yet.
    pub fn new(options: &PgConnectOptions, pooler: Pooler) -> Self {
        let connections = Arc::new(AtomicU64::new(0));
        let named = options.clone().application_name("waybill-relay").disable_statement_logging();
        let (main, lazy) = match pooler {
            Pooler::None => {
                let main = named.options(SESSION);
                (main.clone(), main.options([("synchronous_commit", "off")]))
            }
            // A pooler takes no options at the start, and knows no statement prepared on another connection.
            Pooler::Transaction => {
                let plain = named.statement_cache_capacity(0);
                (plain.clone(), plain)
            }
        };
        let pool = |options, most| {
            let connections = connections.clone();
            let pool = PgPoolOptions::new().max_connections(most).acquire_timeout(ACQUIRE);
            pool.test_before_acquire(false)
                .before_acquire(|connection, known| {
                    Box::pin(async move {
                        if known.idle_for >= FRESH {
                            connection.ping().await?;
                        }
                        Ok(true)
                    })
                })
                .after_connect(move |_, _| {
                    connections.fetch_add(1, Relaxed);
                    Box::pin(async { Ok(()) })
                })
                .connect_lazy_with(options)
        };
        Self {
            keep: pool(main.clone(), KEEP),
            main: pool(main, MAIN),
            lazy: pool(lazy, LAZY),
            pooler,
            connections,
        }
    }

    /// Connections made so far. When the number changed, the server may have restarted meanwhile and lost marks.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// Whether a connection can be made.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub async fn prove(&self) -> Result<(), Error> {
        let connection = connect(&self.main.connect_options()).await?;
        Ok(connection.close().await?)
    }

    /// A setting of the sessions that fetch.
    ///
    /// # Errors
    /// What the database answers.
    pub async fn setting(&self, name: &str) -> Result<String, Error> {
        let mut session = self.main().await?;
        let value = sqlx::query_scalar!(r#"select current_setting($1) as "value!""#, name)
            .fetch_one(&mut session)
            .await?;
        session.end().await?;
        Ok(value)
    }

    /// Closes the pools after their connections came back.
    pub async fn close(&self) {
        tokio::join!(self.main.close(), self.lazy.close(), self.keep.close());
    }
}

fn columns(ids: &[RowId]) -> (Vec<i64>, Vec<Uuid>) {
    ids.iter().map(|id| (id.seq, id.id)).unzip()
}
