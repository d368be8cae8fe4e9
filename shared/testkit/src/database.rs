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
/// Comment of every database that is made here. What has none is not dropped and not cloned, whatever its name.
const MARK: &str = "made by waybill-testkit";
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
        let name = make(&mut admin, &template).await;
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
    let name = template_name(migrators);
    sqlx::query("select pg_advisory_lock($1)").bind(TEMPLATE_LOCK).execute(&mut *admin).await.expect("lock");
    let known: Option<bool> = sqlx::query_scalar(
        "select shobj_description(oid, 'pg_database') is not distinct from $2 from pg_database where datname = $1",
    )
    .bind(&name)
    .bind(MARK)
    .fetch_optional(&mut *admin)
    .await
    .expect("databases");
    match known {
        Some(true) => {}
        Some(false) => panic!("the database {name} is not of the test kit: its comment is not {MARK:?}"),
        None => {
            sweep(admin).await;
            make_template(admin, &name, migrators).await;
        }
    }
    sqlx::query("select pg_advisory_unlock($1)")
        .bind(TEMPLATE_LOCK)
        .execute(&mut *admin)
        .await
        .expect("unlock");
    name
}

/// The name of the template for these migrations.
///
/// A digest of them and of the mark: those of versions without marks are not in the way.
pub fn template_name(migrators: &[Migrator]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
    let checksums = migrators.iter().flat_map(|m| m.iter()).flat_map(|m| m.checksum.iter());
    for byte in MARK.as_bytes().iter().chain(checksums) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("waybill_template_{hash:016x}")
}

/// A copy of a template, under a name that nobody else has. Killed between the two statements it stays for good.
async fn make(admin: &mut PgConnection, template: &str) -> String {
    let name = format!("waybill_test_{}_{}", seconds(), Uuid::new_v4().simple());
    run(admin, &format!(r#"create database "{name}" template "{template}""#)).await.expect("database");
    run(admin, &format!(r#"comment on database "{name}" is '{MARK}'"#)).await.expect("mark");
    name
}

/// Migrated under another name first: a template exists only when it is whole.
async fn make_template(admin: &mut PgConnection, name: &str, migrators: &[Migrator]) {
    let raw = make(admin, "template1").await;
    let mut connection = options().database(&raw).connect().await.expect("template");
    for migrator in migrators {
        migrator.run(&mut connection).await.expect("migrations run");
    }
    connection.close().await.expect("closes");
    run(admin, &format!(r#"alter database "{raw}" rename to "{name}""#)).await.expect("template is renamed");
}

async fn sweep(admin: &mut PgConnection) {
    let names: Vec<String> =
        sqlx::query_scalar("select datname::text from pg_database where datname like 'waybill\\_test\\_%' and shobj_description(oid, 'pg_database') = $1")
            .bind(MARK)
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
