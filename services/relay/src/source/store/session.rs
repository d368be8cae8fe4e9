//! One connection for a statement, or for a few that belong together.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, PgTransaction, Postgres};

use super::{Error, SESSION, Store};

/// What stands between the relay and PostgreSQL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Pooler {
    /// Nothing, or a pooler that gives each client a connection of its own.
    #[default]
    None,
    /// A pooler in transaction mode: each statement may run on another connection.
    Transaction,
}

/// A connection of the relay's. Nothing is done until [`Session::end`] returned.
#[derive(Debug)]
pub(crate) enum Session {
    /// A connection of its own: each statement is a transaction.
    Own(PoolConnection<Postgres>),
    /// Behind a pooler: a transaction, because only that keeps the connection between preparing a statement and
    /// running it, and carries the settings.
    Pinned(PgTransaction<'static>),
}

impl Session {
    /// Commits what the session did.
    pub(crate) async fn end(self) -> Result<(), Error> {
        match self {
            Self::Own(connection) => drop(connection),
            Self::Pinned(transaction) => transaction.commit().await?,
        }
        Ok(())
    }
}

impl Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match self {
            Self::Own(connection) => connection,
            Self::Pinned(transaction) => transaction,
        }
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Own(connection) => connection,
            Self::Pinned(transaction) => transaction,
        }
    }
}

impl Store {
    /// A session that waits for the disk.
    pub(super) async fn main(&self) -> Result<Session, Error> {
        self.session(&self.main, "on").await
    }

    /// A session that does not wait for the disk.
    pub(super) async fn lazy(&self) -> Result<Session, Error> {
        self.session(&self.lazy, "off").await
    }

    /// A transaction that waits for the disk.
    pub(super) async fn transaction(&self) -> Result<PgTransaction<'static>, Error> {
        Ok(match self.pooler {
            Pooler::None => self.main.begin().await?,
            Pooler::Transaction => begin(&self.main, "on").await?,
        })
    }

    async fn session(&self, pool: &PgPool, synchronous_commit: &str) -> Result<Session, Error> {
        Ok(match self.pooler {
            Pooler::None => Session::Own(pool.acquire().await?),
            Pooler::Transaction => Session::Pinned(begin(pool, synchronous_commit).await?),
        })
    }
}

async fn begin(pool: &PgPool, synchronous_commit: &str) -> Result<PgTransaction<'static>, sqlx::Error> {
    let settings = SESSION.into_iter().chain([("synchronous_commit", synchronous_commit)]);
    let settings: String = settings.map(|(name, value)| format!("; set local {name} = '{value}'")).collect();
    pool.begin_with(AssertSqlSafe(format!("begin{settings}"))).await
}
