//! `relay status`: what lies in the outboxes, read from the databases themselves.

use std::collections::BTreeMap;

use anyhow::Context as _;
use clap::Args;
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};

use crate::config::Sources;
use crate::source::store::Status;

/// What `relay status` needs.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// Databases.
    #[command(flatten)]
    pub sources: Sources,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Prints the state of every source.
///
/// # Errors
/// A wrong setting, or a database that does not answer; the message names the source.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let mut all = BTreeMap::new();
    for database in config.sources.parse()? {
        let store = database.store();
        let what = || format!("source {:?}", database.name);
        store.prove().await.with_context(what)?;
        let status = store.status().await.with_context(what)?;
        store.close().await;
        all.insert(database.name, status);
    }
    if config.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        println!("{}", tables(&all));
    }
    Ok(())
}

fn tables(all: &BTreeMap<String, Status>) -> String {
    let mut text = Vec::new();
    for (name, status) in all {
        let mut table = table(&["source", name]);
        table.add_row(["oldest unsent row", &age(status.oldest_unsent_seconds)]);
        for unsent in &status.unsent {
            table.add_row([format!("unsent for {}", unsent.topic), counted(unsent.rows)]);
        }
        for lease in &status.leases {
            let owner = lease.owner.as_deref().unwrap_or("nobody");
            table.add_row([format!("buckets of {owner}"), lease.buckets.to_string()]);
        }
        table.add_row(["blocked keys", &count(status.blocked.len())]);
        table.add_row(["dead rows", &counted(status.dead_rows)]);
        let age = age(status.oldest_held_seconds);
        table.add_row(["rows held behind dead ones", &format!("{}, oldest {age}", counted(status.held))]);
        text.push(table.to_string());
        if !status.blocked.is_empty() {
            text.push(blocked(status).to_string());
        }
        if !status.dead.is_empty() {
            text.push(dead(status).to_string());
        }
    }
    text.join("\n")
}

fn blocked(status: &Status) -> Table {
    let mut table = table(&["blocked key", "topic", "behind row", "since", "held rows"]);
    for key in &status.blocked {
        let (seq, since) = (key.seq.to_string(), key.since.format("%Y-%m-%d %H:%M:%S UTC").to_string());
        table.add_row([&key.key, &key.topic, &seq, &since, &counted(key.held)]);
    }
    table
}

fn dead(status: &Status) -> Table {
    let mut table = table(&["dead row", "message id", "type", "topic", "key", "error"]);
    for row in &status.dead {
        let error = row.error.as_deref().unwrap_or_default();
        table.add_row([&row.seq.to_string(), &row.id.to_string(), &row.r#type, &row.topic, &row.key, error]);
    }
    table
}

/// Lists end at 100.
fn count(listed: usize) -> String {
    if listed < 100 { listed.to_string() } else { "100 or more".to_owned() }
}

/// Counts end at 10,000.
fn counted(rows: i64) -> String {
    if rows < 10_000 { rows.to_string() } else { "10,000 or more".to_owned() }
}

fn age(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "none".to_owned(), |s| format!("{s:.1} s"))
}

/// The look of every table.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header.to_vec());
    table
}
