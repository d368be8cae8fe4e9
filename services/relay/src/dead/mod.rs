//! `relay dead`: rows that Kafka refused for good, and what an operator decides about them. Relays may run meanwhile.

mod report;

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use chrono::{TimeDelta, Utc};
use clap::{ArgGroup, Args, Subcommand};
use humantime::parse_duration;
use uuid::Uuid;

pub use self::report::{Line, Report};
use crate::config::{Database, Sources};
use crate::source::store::operate::{Decision, Outcome, Selection};
use crate::source::store::{Dead, Store};

/// Rows read at once.
const PAGE: i64 = 500;

/// What `relay dead` needs.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Verbs of `relay dead`.
#[derive(Debug, Clone, Subcommand)]
pub enum Verb {
    /// Show dead rows that wait for a decision.
    List(List),
    /// Send dead rows again, and after each the rows of its key that were held behind it.
    Retry(Choice),
    /// Give dead rows up: they are kept and never sent; the rows held behind them go on.
    Skip(Choice),
}

/// What `relay dead list` needs.
#[derive(Debug, Clone, Args)]
pub struct List {
    /// Databases.
    #[command(flatten)]
    pub sources: Sources,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Which rows to decide about.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["rows", "key", "all"]))]
pub struct Choice {
    /// Databases.
    #[command(flatten)]
    pub sources: Sources,
    /// Rows by seq or by message id, as `dead list` shows them.
    #[arg(value_name = "SEQ|ID")]
    pub rows: Vec<Which>,
    /// All dead rows of this key.
    #[arg(long)]
    pub key: Option<String>,
    /// Only of this topic, with or without prefix.
    #[arg(long)]
    pub topic: Option<String>,
    /// All dead rows.
    #[arg(long)]
    pub all: bool,
    /// Only in this source; needed when a seq is dead in several.
    #[arg(long = "in", value_name = "SOURCE")]
    pub only: Option<String>,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Goes before a topic that is given without it.
    #[arg(long, env = "TOPIC_PREFIX", default_value = "", hide_default_value = true)]
    pub topic_prefix: String,
    /// For so long consumers know what they have processed: an older row may be processed a second time.
    #[arg(long, default_value = "14days", value_parser = parse_duration)]
    pub horizon: Duration,
}

/// A row by its seq or its message id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// By seq.
    Seq(i64),
    /// By message id.
    Id(Uuid),
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seq = text.parse().map(Self::Seq).ok();
        let which = seq.or_else(|| text.parse().map(Self::Id).ok());
        which.ok_or_else(|| format!("{text:?} is neither a seq nor a message id"))
    }
}

/// Runs a verb and prints its outcome.
///
/// # Errors
/// A wrong setting, a database that does not answer, or anything that was asked for and not done.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let report = match config.verb {
        Verb::List(list) => return show(list).await,
        Verb::Retry(choice) => decide(choice, Decision::Retry).await?,
        Verb::Skip(choice) => decide(choice, Decision::Skip).await?,
    };
    println!("{report}");
    if report.is_complete() { Ok(()) } else { bail!("not everything was done") }
}

async fn show(list: List) -> anyhow::Result<()> {
    let mut all = std::collections::BTreeMap::new();
    for database in list.sources.parse()? {
        let store = open(&database).await?;
        let rows = dead(&store, &Selection::default()).await.with_context(|| what(&database))?;
        store.close().await;
        all.insert(database.name, rows);
    }
    if list.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        println!("{}", report::list(&all));
    }
    Ok(())
}

/// Carries out a decision about the chosen rows, in `seq` order.
///
/// # Errors
/// A wrong setting or choice, a database that does not answer. What fails for one row is in the report.
pub async fn decide(choice: Choice, decision: Decision) -> anyhow::Result<Report> {
    let selection = choice.selection();
    let mut found: Vec<(Database, Store, Vec<Dead>)> = Vec::new();
    for database in only(choice.sources.parse()?, choice.only.as_deref())? {
        let store = open(&database).await?;
        let rows = dead(&store, &selection).await.with_context(|| what(&database))?;
        found.push((database, store, rows));
    }
    let mut report = Report::new(decision, choice.dry_run);
    for which in &choice.rows {
        let hits = found.iter().filter(|(_, _, rows)| rows.iter().any(|row| which.is(row))).count();
        match hits {
            0 => report.missing(*which),
            1 => {}
            _ => bail!("{which:?} is dead in {hits} sources: say which one with --in"),
        }
    }
    for (database, store, rows) in found {
        for row in rows {
            let old = Utc::now() - row.created_at > TimeDelta::from_std(choice.horizon)?;
            let result = if choice.dry_run {
                Ok(Outcome::Done { released: if row.blocks { row.held.unsigned_abs() } else { 0 } })
            } else {
                store.decide(&row, decision).await
            };
            report.add(Line { source: database.name.clone(), row, old, result });
        }
        store.close().await;
    }
    Ok(report)
}

impl Choice {
    fn selection(&self) -> Selection {
        let topic = self.topic.as_ref().map(|topic| full_name(topic, &self.topic_prefix));
        let mut selection = Selection { key: self.key.clone(), topic, ..Selection::default() };
        for which in &self.rows {
            match which {
                Which::Seq(seq) => selection.seqs.push(*seq),
                Which::Id(id) => selection.ids.push(*id),
            }
        }
        selection
    }
}

impl Which {
    fn is(self, row: &Dead) -> bool {
        match self {
            Self::Seq(seq) => row.seq == seq,
            Self::Id(id) => row.id == id,
        }
    }
}

/// A topic with its prefix, whether it was given with or without.
pub(crate) fn full_name(topic: &str, prefix: &str) -> String {
    if topic.starts_with(prefix) { topic.to_owned() } else { format!("{prefix}{topic}") }
}

/// The chosen source, or all.
pub(crate) fn only(databases: Vec<Database>, name: Option<&str>) -> anyhow::Result<Vec<Database>> {
    let Some(name) = name else { return Ok(databases) };
    let found: Vec<_> = databases.into_iter().filter(|database| database.name == name).collect();
    if found.is_empty() { bail!("there is no source {name:?}") } else { Ok(found) }
}

/// A store that is proven to answer.
pub(crate) async fn open(database: &Database) -> anyhow::Result<Store> {
    let store = database.store();
    store.prove().await.with_context(|| what(database))?;
    Ok(store)
}

pub(crate) fn what(database: &Database) -> String {
    format!("source {:?}", database.name)
}

async fn dead(store: &Store, selection: &Selection) -> anyhow::Result<Vec<Dead>> {
    let mut rows: Vec<Dead> = Vec::new();
    loop {
        let after = rows.last().map_or(0, |row| row.seq);
        let page = store.dead(selection, after, PAGE).await?;
        let more = page.len() as i64 == PAGE;
        rows.extend(page);
        if !more {
            return Ok(rows);
        }
    }
}
