//! All SQL of a source.
//!
//! Two pools: the second one, for marks and purges, does not wait for the disk (`synchronous_commit=off`). A mark
//! lost with the server means that a row is sent again; a lost lease would mean two owners, so leases do wait.

mod fetch;
mod lease;
mod outcome;
mod survey;

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool};
use tokio::time::timeout;
use uuid::Uuid;

pub(crate) use self::fetch::{Fetched, Listed};
pub(crate) use self::outcome::Purged;
pub use self::survey::{Blocked, Dead, Owned, Sample, Status, Unsent};
use super::row::RowId;

const CONNECT: Duration = Duration::from_secs(5);
const ACQUIRE: Duration = Duration::from_secs(3);
/// Connections for leases, fetches and outcomes; one of each may run at the same time.
const MAIN: u32 = 5;
/// Connections for marks and purges.
const LAZY: u32 = 2;

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
    pub fn new(options: &PgConnectOptions) -> Self {
        let bounded =
            options.clone().application_name("waybill-relay").disable_statement_logging().options([
                ("statement_timeout", "5s"),
                ("lock_timeout", "2s"),
                ("idle_in_transaction_session_timeout", "10s"),
            ]);
        let lazy = bounded.clone().options([("synchronous_commit", "off")]);
        let pool = |options, most| {
            PgPoolOptions::new().max_connections(most).acquire_timeout(ACQUIRE).connect_lazy_with(options)
        };
        Self { main: pool(bounded, MAIN), lazy: pool(lazy, LAZY) }
    }

    /// Whether a connection can be made.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub async fn prove(&self) -> Result<(), Error> {
        let connection = connect(&self.main.connect_options()).await?;
        Ok(connection.close().await?)
    }

    /// Closes both pools after their connections came back.
    pub async fn close(&self) {
        tokio::join!(self.main.close(), self.lazy.close());
    }
}

fn columns(ids: &[RowId]) -> (Vec<i64>, Vec<Uuid>) {
    ids.iter().map(|id| (id.seq, id.id)).unzip()
}
