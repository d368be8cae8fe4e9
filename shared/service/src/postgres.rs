//! The PostgreSQL pool, with every wait bounded.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgPool, PgTransaction};

use crate::{ConfigError, migrations, secret};

/// A connection idle for less is handed out without a ping.
const FRESH: Duration = Duration::from_secs(1);

/// How to reach the service's own database.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Config {
    /// Connection URL of the service's database, `postgres://user:password@host:port/database`. A secret.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<SecretString>,
    /// File that holds the connection URL, instead of DATABASE_URL.
    #[arg(long, env = "DATABASE_URL_FILE")]
    pub database_url_file: Option<PathBuf>,
    /// Connections at most. Too few: requests wait and are refused after the acquire time-out; too many: the
    /// server runs out of them for all services.
    #[arg(long, env = "DATABASE_POOL_SIZE", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub database_pool_size: u32,
    /// Longest wait for a free connection. Bounds the waiting, never the holding; then 503.
    #[arg(long, env = "DATABASE_ACQUIRE_TIMEOUT", default_value = "3s", value_parser = humantime::parse_duration)]
    pub database_acquire_timeout: Duration,
    /// Longest run of one statement. Shorter than the slowest legal statement, work never succeeds.
    #[arg(long, env = "DATABASE_STATEMENT_TIMEOUT", default_value = "5s", value_parser = humantime::parse_duration)]
    pub database_statement_timeout: Duration,
    /// Longest wait for a lock; then the statement fails and is retried or refused with 409.
    #[arg(long, env = "DATABASE_LOCK_TIMEOUT", default_value = "2s", value_parser = humantime::parse_duration)]
    pub database_lock_timeout: Duration,
    /// Longest idling inside a transaction; then the server ends the session, so that a stuck process cannot hold
    /// locks for ever.
    #[arg(long, env = "DATABASE_IDLE_IN_TRANSACTION_TIMEOUT", default_value = "10s", value_parser = humantime::parse_duration)]
    pub database_idle_in_transaction_timeout: Duration,
}

/// Why the database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server cannot be reached, or refused.
    #[error("database {database:?} at {host}:{port} cannot be reached")]
    Unreachable {
        /// Host of DATABASE_URL.
        host: String,
        /// Port of DATABASE_URL.
        port: u16,
        /// Database of DATABASE_URL.
        database: String,
        /// What the driver says.
        #[source]
        source: sqlx::Error,
    },
    /// A migration failed, or does not fit what was applied before.
    #[error(transparent)]
    Migrations(#[from] migrations::Error),
    /// The pool has no connection to ask.
    #[error("database gives no connection")]
    NoConnection(#[source] sqlx::Error),
}

impl Config {
    /// Connection options with the time-outs set on the session.
    ///
    /// # Errors
    /// A missing or malformed `DATABASE_URL`; the message never shows the URL, which may hold a password.
    pub fn options(&self, application: &str) -> Result<PgConnectOptions, ConfigError> {
        let url =
            secret::read("DATABASE_URL", self.database_url.as_ref(), self.database_url_file.as_deref())?;
        let options = parse("DATABASE_URL", url.expose_secret())?;
        let millis = |d: Duration| d.as_millis().to_string();
        // Statements are the server's to log; here each would cost a look at the filter.
        Ok(options.disable_statement_logging().application_name(application).options([
            ("statement_timeout", millis(self.database_statement_timeout)),
            ("lock_timeout", millis(self.database_lock_timeout)),
            ("idle_in_transaction_session_timeout", millis(self.database_idle_in_transaction_timeout)),
        ]))
    }

    /// A pool that has proven one connection.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Unreachable`].
    pub async fn connect(&self, application: &str) -> Result<PgPool, Error> {
        let options = self.options(application)?;
        let pool = PgPoolOptions::new()
            .max_connections(self.database_pool_size)
            .acquire_timeout(self.database_acquire_timeout)
            // A ping costs the hot path a round trip; a connection that was used a moment ago needs none.
            .test_before_acquire(false)
            .before_acquire(|connection, meta| {
                Box::pin(async move {
                    if meta.idle_for > FRESH {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(options.clone());
        prove(&pool, &options).await?;
        Ok(pool)
    }
}

/// Checks at start that the migrations of `program` have been applied; a later version may have applied more.
///
/// # Errors
/// [`Error::Migrations`]; [`Error::NoConnection`] without a connection.
pub async fn require_migrated(
    pool: &PgPool,
    program: &'static str,
    migrators: &[Migrator],
) -> Result<(), Error> {
    let mut connection = pool.acquire().await.map_err(Error::NoConnection)?;
    Ok(migrations::require(&mut connection, program, migrators).await?)
}

/// Connection options of a URL given by setting `name`.
///
/// # Errors
/// Not a PostgreSQL URL; the message does not repeat it.
pub fn parse(name: &'static str, url: &str) -> Result<PgConnectOptions, ConfigError> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(ConfigError::invalid(name, "it is not a URL that starts with postgres://"));
    }
    PgConnectOptions::from_str(url).map_err(|e| match e {
        sqlx::Error::Configuration(cause) => ConfigError::invalid(name, cause),
        other => ConfigError::invalid(name, other),
    })
}

async fn prove(pool: &PgPool, options: &PgConnectOptions) -> Result<(), Error> {
    let unreachable = |source| Error::Unreachable {
        host: options.get_host().to_owned(),
        port: options.get_port(),
        database: options.get_database().unwrap_or_default().to_owned(),
        source,
    };
    // A direct connection first: the pool would only say that the time ran out.
    let direct = tokio::time::timeout(Duration::from_secs(10), options.connect()).await;
    let connection = direct.map_err(|_| unreachable(sqlx::Error::PoolTimedOut))?.map_err(unreachable)?;
    drop(connection.close().await);
    drop(pool.acquire().await.map_err(unreachable)?);
    Ok(())
}

/// Begins a transaction so that the caller may be cancelled at any point.
///
/// With sqlx 0.9, a `pool.begin()` whose future is dropped half-way can hand a connection with an open transaction
/// back to the pool (transact-rs/sqlx#4385). Here the beginning runs in a task of its own, which always ends.
///
/// # Errors
/// What the pool or the database answers.
pub async fn begin(pool: &PgPool) -> Result<PgTransaction<'static>, sqlx::Error> {
    let pool = pool.clone();
    tokio::spawn(async move { pool.begin().await }).await.map_err(|_| sqlx::Error::WorkerCrashed)?
}

/// Applies pending migrations in the order given, and says what it did. A database that a later version has migrated
/// is left as it is.
///
/// # Errors
/// [`Error::Config`], [`Error::Unreachable`], [`Error::Migrations`].
pub async fn migrate(config: &Config, application: &str, migrators: Vec<Migrator>) -> Result<(), Error> {
    let mut config = config.clone();
    // A migration may rightly take longer than a request's statement.
    config.database_statement_timeout = Duration::ZERO;
    config.database_lock_timeout = Duration::from_secs(30);
    let pool = config.connect(application).await?;
    let known: usize = migrators.iter().map(|m| m.iter().count()).sum();
    let mut connection = pool.acquire().await.map_err(Error::NoConnection)?;
    for migrator in migrators {
        for later in migrations::apply(&mut connection, migrator).await? {
            println!("{application}: {later} is of a later version and is left as it is");
        }
    }
    drop(connection);
    pool.close().await;
    println!("{application}: database is up to date, {known} migrations");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_url_is_named_without_its_password() {
        for url in ["mysql://a:hunter2@h/db", "hunter2", "postgres://u:hunter2@host:port/db"] {
            let message = parse("DATABASE_URL", url).expect_err(url).to_string();
            assert!(message.contains("DATABASE_URL") && !message.contains("hunter2"), "{message}");
        }
    }
}
