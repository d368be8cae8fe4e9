//! Upgrades and the way back: programs on the schema of a later version, and histories that do not fit.

use sqlx::{AssertSqlSafe, PgPool};
use waybill_tests::System;
use waybill_tests::system::SERVICES;

/// Every service with a database, and the histories in it.
const HISTORIES: [(&str, &[&str]); 4] = [
    ("order", &["_sqlx_migrations", "messaging.outbox_migrations"]),
    ("point", &["_sqlx_migrations", "messaging.consumer_migrations", "messaging.outbox_migrations"]),
    (
        "notification",
        &[
            "_sqlx_migrations",
            "messaging.consumer_migrations",
            "messaging.outbox_migrations",
            "messaging.task_migrations",
        ],
    ),
    ("console", &["_sqlx_migrations", "messaging.outbox_migrations"]),
];
const OWN_TABLES: &str = "pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p') and not c.relispartition and nspname !~ '^(pg_|information_schema)'";

fn pool(system: &System, service: &str) -> PgPool {
    let pools = system.pools();
    match service {
        "order" => pools.orders,
        "point" => pools.points,
        "notification" => pools.notifications,
        _ => pools.console,
    }
}

async fn run(pool: &PgPool, sql: String) {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(pool).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn names(pool: &PgPool, sql: String) -> Vec<String> {
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(pool).await.expect("names")
}

/// What is in the database, as far as a later version has changed it: one column more in every table, and one migration
/// more in every history.
async fn upgrade(pool: &PgPool, histories: &[&str]) {
    let found = names(
        pool,
        format!(
            "select c.oid::regclass::text from {OWN_TABLES} and relname like '%\\_migrations' order by 1"
        ),
    );
    assert_eq!(found.await, histories, "a history that this test does not know");
    for table in names(pool, format!("select c.oid::regclass::text from {OWN_TABLES}")).await {
        run(pool, format!("alter table {table} add column added_later text")).await;
    }
    for history in histories {
        let row =
            "(version, description, success, checksum, execution_time) values (9000, 'later', true, 'x', 1)";
        run(pool, format!("insert into {history} {row}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_migrate_and_serve_on_the_schema_of_a_later_version() {
    let mut system = System::prepare(&[]).await;
    for (service, histories) in HISTORIES {
        upgrade(&pool(&system, service), histories).await;
    }
    for (service, histories) in
        HISTORIES.into_iter().chain([("relay", &["messaging.outbox_migrations"] as &[_])])
    {
        let (code, log) = system.command(service, &["migrate"], &[]).await;
        assert_eq!(code, Some(0), "{service}: {log}");
        for history in histories {
            let told =
                format!("migration 9000 (later) of {history} is of a later version and is left as it is");
            assert!(log.contains(&told), "{service}: {log}");
        }
    }
    // The later version may have failed half-way, and only then is the way back wanted.
    for (service, histories) in HISTORIES {
        for history in histories {
            run(
                &pool(&system, service),
                format!("update {history} set success = false where version = 9000"),
            )
            .await;
        }
    }
    for service in SERVICES {
        system.spawn(service, None);
    }
    for service in SERVICES {
        system.ready(service).await;
    }
    let customer = system.customer();
    for n in 0..20 {
        let answer =
            customer.place(&format!("key-{n}"), "TEA-1", 2, "ON_DELIVERY", None).await.expect("answer");
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    system.settled().await;
    system.assert_invariants().await;
    for (service, rows, sql) in [
        ("point", 20, "select count(*) from point_entry"),
        ("notification", 40, "select count(*) from notification where sent_at is not null"),
    ] {
        let found: i64 = sqlx::query_scalar(sql).fetch_one(&pool(&system, service)).await.expect("rows");
        assert_eq!(found, rows, "{sql}");
    }
}

/// A migration that was damaged, what is told of it, and the statement that repairs.
struct Damage {
    how: &'static str,
    told: &'static str,
    repair: &'static str,
}

const DAMAGES: [Damage; 2] = [
    Damage { how: "set checksum = 'other'", told: "was applied with another text", repair: "set checksum" },
    Damage { how: "set success = false", told: "was left half done", repair: "set success" },
];

/// The statement of a refusal that begins so, to be run as it stands.
fn repair(log: &str, start: &str, version: &str) -> String {
    let from = log.find(start).unwrap_or_else(|| panic!("no {start:?} in {log}"));
    let end = format!("where version = {version}");
    let to = log[from..].find(&end).unwrap_or_else(|| panic!("no {end:?} in {log}"));
    log[from..from + to + end.len()].to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_or_half_done_migration_is_refused_with_its_name_and_its_repair() {
    let system = System::prepare(&[]).await;
    for (service, histories) in HISTORIES {
        let pool = pool(&system, service);
        for history in histories {
            for version in names(&pool, format!("select version::text from {history} order by version")).await
            {
                for damage in &DAMAGES {
                    run(&pool, format!("update {history} {} where version = {version}", damage.how)).await;
                    let mut refusing = vec![(service, "migrate"), (service, "serve")];
                    if *history == "messaging.outbox_migrations" && ["order", "point"].contains(&service) {
                        refusing.push(("relay", "migrate"));
                    }
                    let mut log = String::new();
                    for (program, verb) in refusing {
                        let ended = system.command(program, &[verb], &[]).await;
                        log = ended.1;
                        let of = format!("{program} {verb}, {history} {version}: {log}");
                        assert_eq!(ended.0, Some(1), "{of}");
                        assert!(log.contains(&format!("migration {version:0>4} (")), "{of}");
                        assert!(log.contains(&format!("of {history} {}", damage.told)), "{of}");
                    }
                    let statement = repair(&log, &format!("update {history} {}", damage.repair), &version);
                    run(&pool, statement).await;
                    let (code, log) = system.command(service, &["migrate"], &[]).await;
                    assert_eq!(code, Some(0), "{service}, {history} {version}, repaired: {log}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_newer_than_its_database_says_what_to_run_first() {
    let system = System::prepare(&[]).await;
    for (service, histories) in HISTORIES {
        let pool = pool(&system, service);
        for history in histories {
            run(&pool, format!("create table kept as select * from {history}")).await;
            run(&pool, format!("delete from {history} where version = (select max(version) from {history})"))
                .await;
            let (code, log) = system.command(service, &["serve"], &[]).await;
            assert_eq!(code, Some(1), "{service}, {history}: {log}");
            let told = format!("of {history} has not been applied: run `waybill-{service} migrate` first");
            assert!(log.contains(&told), "{service}: {log}");
            run(
                &pool,
                format!("delete from {history}; insert into {history} select * from kept; drop table kept"),
            )
            .await;
        }
    }
}
