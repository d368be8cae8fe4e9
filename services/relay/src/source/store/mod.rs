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
use sqlx::{ConnectOptions, PgPool};
use uuid::Uuid;

pub(crate) use self::fetch::{Fetched, Listed};
pub(crate) use self::outcome::Purged;
pub use self::survey::{Blocked, Dead, Sample, Status};
use super::row::RowId;

const ACQUIRE: Duration = Duration::from_secs(3);
/// Connections for leases, fetches and outcomes; one of each may run at the same time.
const MAIN: u32 = 5;
/// Connections for marks and purges.
const LAZY: u32 = 2;

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
    /// It refused or could not be reached.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
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

    /// Closes both pools after their connections came back.
    pub async fn close(&self) {
        tokio::join!(self.main.close(), self.lazy.close());
    }
}

fn columns(ids: &[RowId]) -> (Vec<i64>, Vec<Uuid>) {
    ids.iter().map(|id| (id.seq, id.id)).unzip()
}
