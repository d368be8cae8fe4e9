//! The example programs, as cargo built them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::process::Command;
use uuid::Uuid;
use waybill_event::{Codec, Event};
use waybill_testkit::{Database, process};

use crate::invoices::InvoiceEvent;
use crate::{Written, outbox, printed, root};

async fn run(example: &str, database: &Database) -> String {
    let path = process::binaries().join("examples").join(example);
    // `cargo test` builds the examples only when no test is named.
    assert!(
        modified(&path) > newest_source(&path),
        "{} is not built or older than its source: run `cargo build -p waybill-outbox --examples` first",
        path.display(),
    );
    let mut command = Command::new(path);
    command.current_dir(root()).arg(&database.url).env("TOPIC_PREFIX", "staging.");
    printed(command.kill_on_drop(true).output().await, example)
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// When the youngest of this crate's files that went into a binary was changed; cargo lists them beside it.
fn newest_source(binary: &Path) -> Option<SystemTime> {
    let list = std::fs::read_to_string(binary.with_extension("d")).unwrap_or_default();
    let files = list.split_whitespace().map(Path::new);
    files.filter(|file| file.starts_with(env!("CARGO_MANIFEST_DIR"))).filter_map(modified).max()
}

/// One invoice, issued and paid, in this order; the second payment left nothing.
async fn assert_issued_and_paid(pool: &PgPool, printed: &str) {
    let rows: Vec<Written<InvoiceEvent>> = outbox(pool).await;
    let [issued, paid] = &rows[..] else { panic!("two events, not {rows:?}") };
    for (row, event_type) in [(issued, "example.invoice.issued"), (paid, "example.invoice.paid")] {
        assert_eq!((&*row.topic, &*row.aggregate), ("staging.invoices.v1", "invoice"));
        assert_eq!(row.r#type, event_type);
        assert_eq!(row.key, issued.event.invoice_id.to_string());
        assert!(printed.contains(&row.id.to_string()) && printed.contains(event_type), "{printed}");
    }
    assert_eq!((issued.event.version, issued.event.paid), (1, 0));
    let occurred_at = paid.event.occurred_at;
    assert_eq!(paid.event, InvoiceEvent { occurred_at, ..issued.event.paid() });
    assert!(printed.contains("paid a second time: refused, no event"), "{printed}");
    let state: Vec<(Uuid, i64, i64)> =
        sqlx::query_as("select id, version, paid from invoice").fetch_all(pool).await.expect("invoices");
    assert_eq!(state, [(paid.event.invoice_id, paid.event.version, paid.event.paid)]);
}

#[tokio::test]
async fn publish_writes_the_state_and_its_event_in_one_transaction() {
    // The example makes the outbox itself.
    let database = Database::create(&[]).await;
    let printed = run("publish", &database).await;
    assert_issued_and_paid(&database.pool, &printed).await;
}

#[tokio::test]
async fn fused_does_the_same_in_one_statement() {
    let database = Database::create(&[]).await;
    let printed = run("fused", &database).await;
    assert_issued_and_paid(&database.pool, &printed).await;
    assert_eq!(run("fused", &database).await.lines().count(), 4, "it runs again");
}

/// As a consumer of the topic would declare it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct BalanceEvent {
    customer_id: Uuid,
    version: i64,
    balance: i64,
}

static CODEC: LazyLock<Codec> = LazyLock::new(|| {
    let source = include_str!("../../examples/serialize.rs");
    let schema = source.split("r#\"").nth(1).and_then(|rest| rest.split("\"#").next()).expect("the schema");
    Codec::embedded(BalanceEvent::TOPIC, &[schema])
});

impl Event for BalanceEvent {
    const TOPIC: &'static str = "balances.v1";
    const AGGREGATE: &'static str = "balance";

    fn codec() -> &'static Codec {
        &CODEC
    }

    fn event_type(&self) -> String {
        "example.balance.changed".into()
    }

    fn key(&self) -> String {
        self.customer_id.to_string()
    }
}

#[tokio::test]
async fn serialize_lets_the_writers_of_a_key_without_a_row_take_turns() {
    let database = Database::create(&[]).await;
    for _ in 0..5 {
        run("serialize", &database).await;
    }
    let mut customers: BTreeMap<Uuid, Vec<(i64, i64)>> = BTreeMap::new();
    for row in outbox::<BalanceEvent>(&database.pool).await {
        assert_eq!((row.topic.as_str(), row.key), ("staging.balances.v1", row.event.customer_id.to_string()));
        customers.entry(row.event.customer_id).or_default().push((row.event.version, row.event.balance));
    }
    assert_eq!(customers.len(), 5);
    let expected: Vec<_> = (1..=8).map(|n| (n, 100 * n)).collect();
    assert!(customers.values().all(|events| *events == expected), "{customers:?}");
}
