//! Databases that the test kit has not made are left as they are, whatever their names.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqlSafeStr as _};
use uuid::Uuid;
use waybill_testkit::Database;
use waybill_testkit::database::template_name;
use waybill_testkit::environment::environment;

/// Migrations that no template has yet: the next database sweeps and makes one.
fn novel() -> [Migrator; 1] {
    let sql = AssertSqlSafe(format!("create table t_{} ()", Uuid::new_v4().simple())).into_sql_str();
    let migration = Migration::new(1, Cow::Borrowed("novel"), MigrationType::Simple, sql, false);
    [Migrator::with_migrations(vec![migration])]
}

async fn admin() -> PgConnection {
    let options: PgConnectOptions = environment().database_url.parse().expect("a URL");
    PgConnection::connect_with(&options.database("postgres")).await.expect("connects")
}

async fn run(admin: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(admin).await.expect("runs");
}

async fn exists(admin: &mut PgConnection, name: &str) -> bool {
    let sql = "select exists (select from pg_database where datname = $1)";
    sqlx::query_scalar(sql).bind(name).fetch_one(admin).await.expect("databases")
}

#[tokio::test]
async fn a_leftover_is_swept_only_if_it_was_made_here() {
    let mut admin = admin().await;
    // In the form of a leftover, and older than any.
    let (foreign, ours) = (
        format!("waybill_test_1_{}", Uuid::new_v4().simple()),
        format!("waybill_test_1_{}", Uuid::new_v4().simple()),
    );
    for name in [&foreign, &ours] {
        run(&mut admin, format!("create database {name}")).await;
    }
    run(&mut admin, format!("comment on database {ours} is 'made by waybill-testkit'")).await;
    let database = Database::create(&novel()).await;
    assert!(!exists(&mut admin, &ours).await, "a leftover stays");
    assert!(exists(&mut admin, &foreign).await, "a database of somebody else was dropped");
    run(&mut admin, format!("drop database {foreign}")).await;
    drop(database);
}

#[tokio::test]
async fn a_template_of_somebody_else_is_neither_used_nor_dropped() {
    let (mut admin, migrators) = (admin().await, novel());
    let name = template_name(&migrators);
    run(&mut admin, format!("create database {name}")).await;
    let refused = AssertUnwindSafe(Database::create(&migrators)).catch_unwind().await;
    let panic = refused.expect_err("refused");
    let told = panic.downcast_ref::<String>().expect("text");
    assert!(told.contains(&name) && told.contains("is not of the test kit"), "{told}");
    assert!(exists(&mut admin, &name).await);
    run(&mut admin, format!("drop database {name}")).await;
}

#[tokio::test]
async fn the_second_of_one_kind_is_a_copy_of_the_first() {
    let migrators = novel();
    let first = Database::create(&migrators).await;
    let mut admin = admin().await;
    let made = "select oid::int8 from pg_database where datname = $1";
    let template = async |admin: &mut PgConnection| -> i64 {
        sqlx::query_scalar(made).bind(template_name(&migrators)).fetch_one(admin).await.expect("template")
    };
    let before = template(&mut admin).await;
    let second = Database::create(&migrators).await;
    assert_eq!(template(&mut admin).await, before);
    assert_ne!(first.url, second.url);
}
