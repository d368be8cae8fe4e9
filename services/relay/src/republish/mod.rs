//! `relay republish`: sends rows once more that were sent before, with the same ids and headers.
//!
//! It reads and produces by itself and writes nothing to the database: relays may run, and consumers recognise the
//! ids. In `seq` order, so each key's rows come in their order again.

mod run;

use std::fmt;

use anyhow::{Context as _, bail};
use chrono::{DateTime, Utc};
use clap::Args;
use humantime::parse_duration;
use tokio_util::sync::CancellationToken;
use waybill_service::kafka;

use crate::config::Sources;
use crate::dead::{full_name, only, open, what};
use crate::source::store::Filter;

use self::run::Run;

/// What `relay republish` needs.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// Databases.
    #[command(flatten)]
    pub sources: Sources,
    /// Kafka.
    #[command(flatten)]
    pub kafka: kafka::Config,
    /// Rows of this key.
    #[arg(long)]
    pub key: Option<String>,
    /// Rows of this topic, with or without prefix.
    #[arg(long)]
    pub topic: Option<String>,
    /// Rows of this `ce_type`.
    #[arg(long = "type")]
    pub kind: Option<String>,
    /// Rows written since: a time such as 2026-11-30T10:00:00Z, or a duration such as 2h.
    #[arg(long, value_parser = parse_since)]
    pub since: Option<DateTime<Utc>>,
    /// Every row that is still kept, when no filter is given.
    #[arg(long)]
    pub all: bool,
    /// Only in this source.
    #[arg(long = "in", value_name = "SOURCE")]
    pub only: Option<String>,
    /// Records a second at most: consumers do this work beside their daily work.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: u32,
    /// Only rows above this seq: to go on where an interrupted run ended.
    #[arg(long, default_value_t = 0)]
    pub after: i64,
    /// Count what would be sent, and send nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Largest record in bytes that writers append (their `outbox.max_bytes`).
    #[arg(long, env = "OUTBOX_MAX_BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1_024..=100_000_000))]
    pub outbox_max_bytes: u32,
}

fn parse_since(text: &str) -> Result<DateTime<Utc>, String> {
    if let Ok(ago) = parse_duration(text) {
        return Ok(Utc::now() - ago);
    }
    let time = DateTime::parse_from_rfc3339(text);
    time.map(|time| time.to_utc())
        .map_err(|_| format!("{text:?} is neither a time (RFC 3339) nor a duration"))
}

/// What became of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Its name.
    pub source: String,
    /// Rows that the filter chose.
    pub chosen: u64,
    /// Records that the broker acknowledged.
    pub acknowledged: u64,
    /// Every chosen row up to here was acknowledged.
    pub up_to: i64,
    /// The first record that was refused, and why.
    pub refused: Option<(i64, String)>,
    /// It was interrupted.
    pub interrupted: bool,
    dry_run: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.source)?;
        if self.dry_run {
            return write!(f, "{} rows would be sent again (dry run: nothing was done)", self.chosen);
        }
        write!(f, "{} of {} records acknowledged", self.acknowledged, self.chosen)?;
        if let Some((seq, why)) = &self.refused {
            write!(f, "; row {seq} was refused: {why}")?;
        }
        if self.is_complete() {
            return Ok(());
        }
        let why = if self.interrupted { "interrupted; " } else { "" };
        write!(f, "; {why}go on with --in {} --after {}", self.source, self.up_to)
    }
}

impl Report {
    fn is_complete(&self) -> bool {
        self.refused.is_none() && !self.interrupted && self.acknowledged == self.chosen
    }
}

/// Republishes, and prints a report for each source.
///
/// # Errors
/// A wrong setting, no filter, a database that does not answer, a record that was refused, an interruption.
pub async fn run(config: Config, shutdown: CancellationToken) -> anyhow::Result<()> {
    let reports = republish(config, shutdown).await?;
    for report in &reports {
        println!("{report}");
    }
    let complete = reports.iter().all(|report| report.dry_run || report.is_complete());
    if complete { Ok(()) } else { bail!("not everything was sent again") }
}

/// Republishes source by source until done, refused or interrupted.
///
/// # Errors
/// A wrong setting, no filter, a database that does not answer, a producer that cannot be made.
pub async fn republish(config: Config, shutdown: CancellationToken) -> anyhow::Result<Vec<Report>> {
    let filtered =
        config.key.is_some() || config.topic.is_some() || config.kind.is_some() || config.since.is_some();
    if !filtered && !config.all {
        bail!("no filter is given: choose by --key, --topic, --type or --since, or say --all");
    }
    let filter = Filter {
        key: config.key.clone(),
        topic: config.topic.as_ref().map(|topic| full_name(topic, &config.kafka.topic_prefix)),
        kind: config.kind.clone(),
        since: config.since,
    };
    let mut reports = Vec::new();
    for database in only(config.sources.parse()?, config.only.as_deref())? {
        let store = open(&database).await?;
        let mut run = Run::new(&config, &database, &store, &filter).await?;
        let result = run.all(&shutdown).await.with_context(|| what(&database));
        let report = run.end().await;
        store.close().await;
        reports.push(report);
        result?;
        if shutdown.is_cancelled() {
            break;
        }
    }
    Ok(reports)
}
