//! A database of one's own for every test, cloned from a template that was migrated once.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool};
use uuid::Uuid;

use crate::environment::environment;

/// Test databases older than this are leftovers of runs that were killed.
const LEFTOVER: Duration = Duration::from_secs(2 * 3600);
/// Any number that nothing else locks.
const TEMPLATE_LOCK: i64 = 0x57_41_59_42;

/// A database that is dropped with this value.
#[derive(Debug)]
pub struct Database {
    /// Its connection URL.
    pub url: String,
    /// A pool on it.
    pub pool: PgPool,
    name: String,
}

impl Database {
    /// A fresh database in which the migrations have run.
    ///
    /// # Panics
    /// When the server cannot be reached or a migration fails.
    pub async fn create(migrators: &[Migrator]) -> Self {
        let mut admin = admin().await;
        let template = template(&mut admin, migrators).await;
        let name = format!("waybill_test_{}_{}", seconds(), Uuid::new_v4().simple());
        run(&mut admin, &format!(r#"create database "{name}" template "{template}""#))
            .await
            .expect("test database");
        admin.close().await.expect("closes");
        let options = options().database(&name);
        let url = options.to_url_lossy().to_string();
        let pool =
            PgPoolOptions::new().max_connections(20).connect_with(options).await.expect("test database");
        Self { url, pool, name }
    }

    /// Ends every other session on the database, as a restart of the server would.
    ///
    /// # Panics
    /// When the server cannot be reached.
    pub async fn terminate_sessions(&self) {
        let mut admin = admin().await;
        sqlx::query("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1")
            .bind(&self.name)
            .execute(&mut admin)
            .await
            .expect("terminates");
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.name);
        // A thread with a runtime of its own: the test's runtime may be ending.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut admin = admin().await;
                run(&mut admin, &format!(r#"drop database if exists "{name}" with (force)"#)).await
            })?;
            Ok::<_, anyhow::Error>(())
        });
        // What stays is swept by a later run.
        drop(dropped.join());
    }
}

fn options() -> PgConnectOptions {
    PgConnectOptions::from_str(&environment().database_url).expect("DATABASE_URL is a PostgreSQL URL")
}

async fn admin() -> PgConnection {
    let options = options().database("postgres");
    options.connect().await.expect("PostgreSQL of DATABASE_URL cannot be reached")
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs()
}

/// Runs a statement whose names are our own.
async fn run(admin: &mut PgConnection, statement: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(admin).await.map(drop)
}

/// The template for these migrations, made once; its name is a digest of them.
async fn template(admin: &mut PgConnection, migrators: &[Migrator]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
    for byte in migrators.iter().flat_map(|m| m.iter()).flat_map(|m| m.checksum.iter()) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let name = format!("waybill_template_{hash:016x}");
    sqlx::query("select pg_advisory_lock($1)").bind(TEMPLATE_LOCK).execute(&mut *admin).await.expect("lock");
    let known: bool = sqlx::query_scalar("select exists (select 1 from pg_database where datname = $1)")
        .bind(&name)
        .fetch_one(&mut *admin)
        .await
        .expect("databases");
    if !known {
        sweep(admin).await;
        make_template(admin, &name, migrators).await;
    }
    sqlx::query("select pg_advisory_unlock($1)")
        .bind(TEMPLATE_LOCK)
        .execute(&mut *admin)
        .await
        .expect("unlock");
    name
}

/// Migrated under another name first: a template exists only when it is whole.
async fn make_template(admin: &mut PgConnection, name: &str, migrators: &[Migrator]) {
    let raw = format!("{name}_raw");
    run(admin, &format!(r#"drop database if exists "{raw}" with (force)"#)).await.expect("old template");
    run(admin, &format!(r#"create database "{raw}""#)).await.expect("template");
    let mut connection = options().database(&raw).connect().await.expect("template");
    for migrator in migrators {
        migrator.run(&mut connection).await.expect("migrations run");
    }
    connection.close().await.expect("closes");
    run(admin, &format!(r#"alter database "{raw}" rename to "{name}""#)).await.expect("template is renamed");
}

async fn sweep(admin: &mut PgConnection) {
    let names: Vec<String> =
        sqlx::query_scalar("select datname::text from pg_database where datname like 'waybill\\_test\\_%'")
            .fetch_all(&mut *admin)
            .await
            .expect("databases");
    for name in names {
        let made = name.split('_').nth(2).and_then(|s| s.parse::<u64>().ok()).unwrap_or(0);
        if made + LEFTOVER.as_secs() < seconds() {
            run(admin, &format!(r#"drop database if exists "{name}" with (force)"#)).await.expect("leftover");
        }
    }
}
