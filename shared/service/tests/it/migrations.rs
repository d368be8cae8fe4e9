//! Two versions of a program over one database.

use std::borrow::Cow;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr as _};
use waybill_service::migrations::{Error, apply, require};
use waybill_testkit::Database;

fn migrator(statements: &[&'static str]) -> Migrator {
    let migration = |(version, sql): (i64, &&'static str)| {
        let sql = AssertSqlSafe((*sql).to_owned()).into_sql_str();
        Migration::new(version, Cow::Borrowed("table"), MigrationType::Simple, sql, false)
    };
    Migrator::with_migrations((1..).zip(statements).map(migration).collect())
}

fn older() -> Migrator {
    migrator(&["create table a ()"])
}

fn newer() -> Migrator {
    migrator(&["create table a ()", "create table b ()"])
}

#[tokio::test]
async fn up_back_and_up_again() {
    let database = Database::create(&[]).await;
    let mut connection = database.pool.acquire().await.expect("connection");
    let error = require(&mut connection, "older", &[older()]).await.expect_err("nothing is applied");
    assert!(error.to_string().ends_with("run `older migrate` first"), "{error}");
    assert_eq!(apply(&mut connection, older()).await.expect("up"), []);
    let error = require(&mut connection, "newer", &[older(), newer()]).await.expect_err("0002 is pending");
    assert!(matches!(&error, Error::Pending { migration, .. } if migration.version == 2), "{error}");
    for _ in 0..2 {
        assert_eq!(apply(&mut connection, newer()).await.expect("up"), []);
        let later = apply(&mut connection, older()).await.expect("back");
        assert_eq!(later.iter().map(|name| name.version).collect::<Vec<_>>(), [2]);
        require(&mut connection, "older", &[older()]).await.expect("serves");
        require(&mut connection, "newer", &[newer()]).await.expect("serves");
    }
}

#[tokio::test]
async fn two_versions_that_migrate_at_once_end_with_the_newer() {
    for _ in 0..10 {
        let database = Database::create(&[]).await;
        let (mut one, mut other) =
            (database.pool.acquire().await.expect("one"), database.pool.acquire().await.expect("other"));
        let (old, new) = tokio::join!(apply(&mut one, older()), apply(&mut other, newer()));
        old.expect("the older");
        new.expect("the newer");
        require(&mut one, "newer", &[newer()]).await.expect("all are applied");
    }
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing_and_is_told_with_its_history() {
    let database = Database::create(&[]).await;
    let mut connection = database.pool.acquire().await.expect("connection");
    let broken = || migrator(&["create table a ()", "create table b (); create table a ()"]);
    let error = apply(&mut connection, broken()).await.expect_err("a exists");
    assert!(matches!(&error, Error::Failed { history, .. } if history == "_sqlx_migrations"), "{error:?}");
    drop(connection.detach());
    let mut connection = database.pool.acquire().await.expect("connection");
    assert_eq!(apply(&mut connection, older()).await.expect("0001 is there, 0002 is not"), []);
}
