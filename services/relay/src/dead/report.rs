//! What `relay dead` prints.

use std::collections::BTreeMap;
use std::fmt;

use super::Which;
use crate::source::store::operate::{Decision, Outcome};
use crate::source::store::{self, Dead};
use crate::status::table;

/// One row and what became of it.
#[derive(Debug)]
pub struct Line {
    /// Name of its source.
    pub source: String,
    /// The row as it was.
    pub row: Dead,
    /// It is older than the consumers' memory.
    pub old: bool,
    /// What became of it.
    pub result: Result<Outcome, store::Error>,
}

/// The end report of a decision.
#[derive(Debug)]
pub struct Report {
    decision: Decision,
    dry_run: bool,
    lines: Vec<Line>,
    missing: Vec<Which>,
}

impl Report {
    pub(super) fn new(decision: Decision, dry_run: bool) -> Self {
        Self { decision, dry_run, lines: Vec::new(), missing: Vec::new() }
    }

    pub(super) fn add(&mut self, line: Line) {
        self.lines.push(line);
    }

    pub(super) fn missing(&mut self, which: Which) {
        self.missing.push(which);
    }

    /// Rows about which the decision was carried out (or would be).
    pub fn done(&self) -> usize {
        self.lines.iter().filter(|line| matches!(line.result, Ok(Outcome::Done { .. }))).count()
    }

    /// Held rows that were let go (or would be).
    pub fn released(&self) -> u64 {
        let released = |line: &Line| match line.result {
            Ok(Outcome::Done { released }) => released,
            _ => 0,
        };
        self.lines.iter().map(released).sum()
    }

    /// Everything that was asked for was done.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.done() == self.lines.len()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, would) = match self.decision {
            Decision::Retry => ("retried", "would be retried"),
            Decision::Skip => ("skipped", "would be skipped"),
        };
        let verb = if self.dry_run { would } else { verb };
        if !self.lines.is_empty() {
            let mut rows = table(&["source", "seq", "message id", "topic", "key", "outcome"]);
            for Line { source, row, result, .. } in &self.lines {
                let outcome = match result {
                    Ok(Outcome::Done { released: 0 }) => verb.to_owned(),
                    Ok(Outcome::Done { released }) => format!("{verb}, {released} held rows behind it"),
                    Ok(Outcome::Gone) => "not dead any more: decided by somebody else".to_owned(),
                    Err(error) => format!("failed: {error}"),
                };
                let (seq, id) = (row.seq.to_string(), row.id.to_string());
                rows.add_row([source, &seq, &id, &row.topic, &row.key, &outcome]);
            }
            writeln!(f, "{rows}")?;
        }
        for which in &self.missing {
            match which {
                Which::Seq(seq) => writeln!(f, "no dead row has seq {seq}")?,
                Which::Id(id) => writeln!(f, "no dead row has message id {id}")?,
            }
        }
        if self.decision == Decision::Retry {
            for line in self.lines.iter().filter(|line| line.old) {
                writeln!(
                    f,
                    "warning: row {} is from {}, which consumers may not remember: one that has it already would \
                     process it again",
                    line.row.seq,
                    line.row.created_at.format("%Y-%m-%d")
                )?;
            }
            for line in self.lines.iter().filter(|line| !line.row.blocks) {
                writeln!(
                    f,
                    "warning: row {} does not block its key; later rows may be out already",
                    line.row.seq
                )?;
            }
        }
        write!(f, "{} of {} {verb}; {} held rows let go", self.done(), self.asked(), self.released())?;
        if self.dry_run { write!(f, " (dry run: nothing was done)") } else { Ok(()) }
    }
}

impl Report {
    fn asked(&self) -> usize {
        self.lines.len() + self.missing.len()
    }
}

/// Dead rows of all sources.
pub(super) fn list(all: &BTreeMap<String, Vec<Dead>>) -> String {
    let mut rows =
        table(&["source", "seq", "message id", "type", "topic", "key", "dead since", "held behind", "error"]);
    for (source, row) in all.iter().flat_map(|(source, rows)| rows.iter().map(move |row| (source, row))) {
        let held = if row.blocks { row.held.to_string() } else { "does not block".to_owned() };
        let since = row.dead_at.map(|at| at.format("%Y-%m-%d %H:%M:%S").to_string()).unwrap_or_default();
        let (seq, id) = (row.seq.to_string(), row.id.to_string());
        let error = row.error.as_deref().unwrap_or_default();
        rows.add_row([source, &seq, &id, &row.r#type, &row.topic, &row.key, &since, &held, error]);
    }
    let count: usize = all.values().map(Vec::len).sum();
    if count == 0 { "no dead rows".to_owned() } else { format!("{rows}\n{count} dead rows") }
}
