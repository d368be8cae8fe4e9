//! One connection for a statement, or for a few that belong together.

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{AssertSqlSafe, Either, Execute, Executor, PgConnection, PgPool, PgTransaction, Postgres, SqlStr};

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
pub(crate) struct Session {
    kind: Kind,
    pooler: Pooler,
}

#[derive(Debug)]
enum Kind {
    /// A connection of its own: each statement is a transaction.
    Own(PoolConnection<Postgres>),
    /// A transaction. Behind a pooler only that keeps the connection between preparing a statement and running it,
    /// and carries the settings.
    Pinned(PgTransaction<'static>),
}

impl Session {
    /// Commits what the session did.
    pub(crate) async fn end(self) -> Result<(), Error> {
        match self.kind {
            Kind::Own(connection) => drop(connection),
            Kind::Pinned(transaction) => transaction.commit().await?,
        }
        Ok(())
    }

    fn connection(&mut self) -> &mut PgConnection {
        match &mut self.kind {
            Kind::Own(connection) => connection,
            Kind::Pinned(transaction) => transaction,
        }
    }

    fn wrap<E>(&self, query: E) -> Statement<E> {
        Statement { query, named: self.pooler == Pooler::None }
    }
}

/// A statement that is prepared without a name, unless the connection is the relay's own: a name would collide with
/// that of another client whose connection it was before. A statement cache of size 0 alone does not prevent it.
struct Statement<E> {
    query: E,
    named: bool,
}

impl<'q, E: Execute<'q, Postgres>> Execute<'q, Postgres> for Statement<E> {
    fn sql(self) -> SqlStr {
        self.query.sql()
    }

    fn statement(&self) -> Option<&PgStatement> {
        self.query.statement()
    }

    fn take_arguments(
        &mut self,
    ) -> Result<Option<<Postgres as sqlx::Database>::Arguments>, sqlx::error::BoxDynError> {
        self.query.take_arguments()
    }

    fn persistent(&self) -> bool {
        self.named && self.query.persistent()
    }
}

impl<'c> Executor<'c> for &'c mut Session {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let statement = self.wrap(query);
        self.connection().fetch_many(statement)
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let statement = self.wrap(query);
        self.connection().fetch_optional(statement)
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        self.connection().prepare_with(sql, parameters)
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<sqlx::Describe<Postgres>, sqlx::Error>>
    where
        'c: 'e,
    {
        self.connection().describe(sql)
    }
}

impl Store {
    /// A session that waits for the disk.
    pub(super) async fn main(&self) -> Result<Session, Error> {
        self.session(&self.main, "on").await
    }

    /// A session for leases.
    pub(super) async fn keep(&self) -> Result<Session, Error> {
        self.session(&self.keep, "on").await
    }

    /// A session that does not wait for the disk.
    pub(super) async fn lazy(&self) -> Result<Session, Error> {
        self.session(&self.lazy, "off").await
    }

    /// A transaction that waits for the disk.
    pub(super) async fn transaction(&self) -> Result<Session, Error> {
        let kind = match self.pooler {
            Pooler::None => Kind::Pinned(self.main.begin().await?),
            Pooler::Transaction => Kind::Pinned(begin(&self.main, "on").await?),
        };
        Ok(Session { kind, pooler: self.pooler })
    }

    async fn session(&self, pool: &PgPool, synchronous_commit: &str) -> Result<Session, Error> {
        let kind = match self.pooler {
            Pooler::None => Kind::Own(pool.acquire().await?),
            Pooler::Transaction => Kind::Pinned(begin(pool, synchronous_commit).await?),
        };
        Ok(Session { kind, pooler: self.pooler })
    }
}

async fn begin(pool: &PgPool, synchronous_commit: &str) -> Result<PgTransaction<'static>, sqlx::Error> {
    let settings = SESSION.into_iter().chain([("synchronous_commit", synchronous_commit)]);
    let settings: String = settings.map(|(name, value)| format!("; set local {name} = '{value}'")).collect();
    pool.begin_with(AssertSqlSafe(format!("begin{settings}"))).await
}
