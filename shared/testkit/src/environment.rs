//! Where PostgreSQL and Kafka are.

use std::path::Path;
use std::sync::LazyLock;

use serde_json::Value;

/// Addresses of the real parts.
#[derive(Debug, Clone)]
pub struct Environment {
    /// URL of a database of the server that tests create their databases on.
    pub database_url: String,
    /// Kafka's `bootstrap.servers`.
    pub kafka_bootstrap: String,
}

static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    let given = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let status = status();
    let from = |name: &str, path: &str| {
        given(name)
            .or_else(|| status.as_ref()?.pointer(path)?.as_str().map(str::to_owned))
            .unwrap_or_else(|| panic!("{name} is not set and nothing is up: run the tests by `cargo dev test`, or `cargo dev up` first"))
    };
    Environment {
        database_url: from("DATABASE_URL", "/database/admin_url"),
        kafka_bootstrap: from("KAFKA_BOOTSTRAP", "/kafka/bootstrap"),
    }
});

/// The addresses, found once a process.
///
/// # Panics
/// When neither the environment nor a running `cargo dev up` gives them.
pub fn environment() -> &'static Environment {
    &ENVIRONMENT
}

/// What `cargo dev status --json` says, when something is up.
fn status() -> Option<Value> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    serde_json::from_slice(&std::fs::read(here.join(".dev/status.json")).ok()?).ok()
}
