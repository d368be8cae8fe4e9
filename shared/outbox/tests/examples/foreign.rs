//! Writers in other languages, and databases made without this crate.

use sqlx::Connection;
use tokio::process::Command;
use uuid::Uuid;
use waybill_event::encode;
use waybill_testkit::Database;

use crate::invoices::{InvoiceEvent, TABLE};
use crate::{Written, outbox, printed, readme, root};

/// A database with the outbox and the invoices, as the README's first step leaves it.
async fn database() -> Database {
    let database = Database::create(&[waybill_outbox::migrator()]).await;
    sqlx::raw_sql(TABLE).execute(&database.pool).await.expect("table");
    database
}

/// The URL without what only sqlx knows, as a person would write it.
fn libpq(database: &Database) -> String {
    let (address, query) = database.url.split_once('?').unwrap_or((&database.url, ""));
    let known: Vec<&str> = query.split('&').filter(|p| !p.starts_with("statement-cache-capacity")).collect();
    format!("{address}?{}", known.join("&"))
}

fn psql(database: &Database, arguments: &[&str]) -> Command {
    let mut command = Command::new("psql");
    command.args(["--no-psqlrc", &libpq(database)]).args(arguments).current_dir(root()).kill_on_drop(true);
    command
}

#[tokio::test]
async fn psql_appends_by_the_same_function() {
    let database = database().await;
    let event = InvoiceEvent::issued(9_000);
    let payload: String = encode(&event).expect("encodes").iter().map(|byte| format!("{byte:02x}")).collect();
    let arguments = [
        &*format!("--set=invoice_id={}", event.invoice_id),
        &*format!("--set=payload={payload}"),
        "--file=shared/outbox/examples/append.sql",
    ];
    printed(psql(&database, &arguments).output().await, "psql");
    // The same again finds the invoice, and leaves no second event.
    let again = psql(&database, &arguments).output().await.expect("psql");
    assert!(!again.status.success(), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("invoice_pkey"), "{again:?}");
    let rows: Vec<Written<InvoiceEvent>> = outbox(&database.pool).await;
    let [row] = &rows[..] else { panic!("one event, not {rows:?}") };
    assert_eq!((&*row.topic, &*row.r#type), ("invoices.v1", "example.invoice.issued"));
    assert_eq!(row.key, event.invoice_id.to_string());
    assert_eq!(encode(&row.event).expect("encodes"), encode(&event).expect("encodes"));
}

/// The commands are the README's own. Python's packages stay in `target/python-venv`; the first run needs the network.
#[tokio::test]
async fn python_writes_what_rust_reads() {
    let database = database().await;
    let script = readme::blocks("### From Python", "sh").remove(0);
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script]).current_dir(root()).kill_on_drop(true);
    bash.env("INVOICES", libpq(&database)).env_remove("TOPIC_PREFIX");
    let printed = printed(
        bash.output().await,
        "the README's section \"From Python\" (it needs python3 with venv, psql, and at first the package index)",
    );
    let said: serde_json::Value =
        serde_json::from_str(printed.lines().next().expect("a line")).expect("what it wrote, as JSON");

    let rows: Vec<Written<InvoiceEvent>> = outbox(&database.pool).await;
    let [python, by_psql] = &rows[..] else { panic!("two events, not {rows:?}") };
    let meant: InvoiceEvent = InvoiceEvent {
        invoice_id: said["event"]["invoice_id"].as_str().and_then(|id| id.parse().ok()).expect("id"),
        version: 1,
        r#type: "issued".into(),
        currency: "KRW".into(),
        total: 9_000,
        paid: 0,
        occurred_at: said["event"]["occurred_at"].as_str().and_then(|at| at.parse().ok()).expect("time"),
        discount: 0,
    };
    assert_eq!(python.event, meant);
    assert_eq!(Some(&*python.id.to_string()), said["id"].as_str());
    assert_eq!(python.id.get_version_num(), 7);
    let now = Uuid::now_v7();
    assert!(python.id < now && now.as_u128() - python.id.as_u128() < (3_600_000 << 80), "made just now");
    for row in &rows {
        assert_eq!((&*row.topic, &*row.aggregate), ("invoices.v1", "invoice"));
        assert_eq!((&*row.r#type, &row.key), ("example.invoice.issued", &row.event.invoice_id.to_string()));
    }
    assert_eq!((by_psql.event.version, by_psql.event.total), (1, 9_000));
    let invoices: i64 =
        sqlx::query_scalar("select count(*) from invoice").fetch_one(&database.pool).await.expect("invoices");
    assert_eq!(invoices, 2);
}

#[tokio::test]
async fn another_tool_may_apply_the_files_and_then_must_go_on_doing_so() {
    let database = Database::create(&[]).await;
    let mut files: Vec<_> = std::fs::read_dir(root().join("shared/outbox/migrations"))
        .expect("migrations")
        .map(|entry| entry.expect("entry").path().to_str().expect("path").to_owned())
        .collect();
    files.sort();
    for file in files {
        let arguments = ["--single-transaction", "--set=ON_ERROR_STOP=1", "--quiet", "--file", &file];
        printed(psql(&database, &arguments).output().await, "psql");
    }
    sqlx::raw_sql(TABLE).execute(&database.pool).await.expect("table");
    let issued = InvoiceEvent::issued(1);
    let mut tx = database.pool.begin().await.expect("begins");
    let locked = waybill_outbox::serialize(&mut tx, issued.invoice_id.to_string()).await.expect("locks");
    let writer = waybill_outbox::Outbox::new("", waybill_outbox::DEFAULT_MAX_BYTES);
    writer.append(&mut tx, &locked, &issued).await.expect("appends");
    tx.commit().await.expect("commits");

    let error = waybill_outbox::migrator().run(&database.pool).await.expect_err("no history there");
    let said = r#"function "bucket" already exists"#;
    let error = format!("{:#}", anyhow::Error::from(error));
    assert!(error.contains(said), "{error}");
    assert!(readme::TEXT.contains(said));
}

#[tokio::test]
async fn a_writers_role_needs_no_more_than_the_grants_of_the_readme() {
    let database = database().await;
    let mut connection = sqlx::PgConnection::connect(&database.url).await.expect("connects");
    // Roles belong to the whole server: this one is gone with the transaction.
    let mut tx = connection.begin().await.expect("begins");
    let role = format!("waybill_test_{}", Uuid::new_v4().simple());
    let grants = readme::blocks("## Publish your own event", "sql").remove(0).replace("invoices_app", &role);
    let script = format!("create role {role}; {grants}; set local role {role};");
    sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(&mut *tx).await.expect("grants");
    sqlx::query("select messaging.append(gen_random_uuid(), 'invoice', 'k', 't', 'invoices.v1', '\\x01')")
        .execute(&mut *tx)
        .await
        .expect("appends");
    let read = sqlx::query("select payload from messaging.outbox").execute(&mut *tx).await;
    assert!(read.expect_err("no right to read").to_string().contains("permission denied"));
    tx.rollback().await.expect("rolls back");
}
