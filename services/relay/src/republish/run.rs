//! Reading, sending at a rate, and settling what the broker answers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rdkafka::error::RDKafkaErrorCode;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{Config, Report};
use crate::config::Database;
use crate::source::producer::{self, Producers, Report as Fate};
use crate::source::store::{Filter, Store};

/// Records that wait for their acknowledgement at most.
const IN_FLIGHT: u64 = 1_000;
/// Longest wait for acknowledgements after an interruption.
const FLUSH: Duration = Duration::from_secs(10);

/// One source on its way.
pub(super) struct Run<'a> {
    store: &'a Store,
    filter: &'a Filter,
    ce_source: String,
    producers: Option<Producers>,
    fates: UnboundedReceiver<Fate>,
    /// Rows sent and not acknowledged.
    open: BTreeSet<i64>,
    last: i64,
    until: i64,
    rate: u32,
    started: Instant,
    bar: ProgressBar,
    report: Report,
}

impl<'a> Run<'a> {
    pub(super) async fn new(
        config: &Config,
        database: &Database,
        store: &'a Store,
        filter: &'a Filter,
    ) -> anyhow::Result<Self> {
        let (sender, fates) = unbounded_channel();
        let name = &database.name;
        let producers = if config.dry_run {
            None
        } else {
            let kafka = config.kafka.client_settings()?;
            let settings = producer::settings(&kafka, name, IN_FLIGHT as u32, config.outbox_max_bytes);
            Some(Producers::new(settings, sender)?)
        };
        // Rows that come later are the relay's: the end is fixed at the start.
        let until = store.last_seq().await?;
        let style = ProgressStyle::with_template("{prefix} {bar:30} {percent}% {msg} {elapsed} (eta {eta})")?;
        let bar = ProgressBar::new(until.unsigned_abs()).with_style(style).with_prefix(name.clone());
        let report = Report {
            source: name.clone(),
            up_to: config.after,
            dry_run: config.dry_run,
            ..Report::default()
        };
        Ok(Self {
            store,
            filter,
            ce_source: format!("/{name}"),
            producers,
            fates,
            open: BTreeSet::new(),
            last: config.after,
            until,
            rate: config.rate,
            started: Instant::now(),
            bar,
            report,
        })
    }

    /// Sends the chosen rows and waits for their acknowledgements, until one is refused or `shutdown`.
    pub(super) async fn all(&mut self, shutdown: &CancellationToken) -> anyhow::Result<()> {
        let mut after = self.last;
        loop {
            let step = self.store.sent(after, self.until, self.filter).await?;
            for row in step.rows {
                self.report.chosen += 1;
                let Some(producers) = &mut self.producers else { continue };
                let seq = row.id.seq;
                if let Err(error) = producers.send(&row, false, &self.ce_source, None) {
                    self.report.refused = Some((seq, error.to_string()));
                    return Ok(());
                }
                self.open.insert(seq);
                self.last = seq;
                if !self.wait(shutdown).await {
                    return Ok(());
                }
            }
            let Some(next) = step.next else { break };
            after = next;
            self.last = next;
            self.bar.set_position(next.unsigned_abs());
        }
        while !self.open.is_empty() {
            if !self.one(shutdown).await {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Waits until the next record may leave; `false`: none may any more.
    async fn wait(&mut self, shutdown: &CancellationToken) -> bool {
        let due = self.started + Duration::from_secs_f64(self.report.chosen as f64 / f64::from(self.rate));
        while self.open.len() as u64 >= IN_FLIGHT {
            if !self.one(shutdown).await {
                return false;
            }
        }
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {
                    self.report.interrupted = true;
                    return false;
                }
                Some(fate) = self.fates.recv() => if !self.settle(&fate) { return false },
                () = sleep_until(due.into()) => return true,
            }
        }
    }

    async fn one(&mut self, shutdown: &CancellationToken) -> bool {
        tokio::select! {
            () = shutdown.cancelled() => {
                self.report.interrupted = true;
                false
            }
            fate = self.fates.recv() => fate.is_some_and(|fate| self.settle(&fate)),
        }
    }

    /// Takes in a record's fate; `false`: it was refused, and nothing must follow.
    fn settle(&mut self, fate: &Fate) -> bool {
        let Fate::Delivered { id, error, .. } = fate else { return true };
        if let Some(code) = error {
            // Of a purge at the end the fate is unknown: it counts as not acknowledged.
            if !matches!(code, RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight) {
                self.report.refused.get_or_insert((id.seq, code.to_string()));
            }
            return false;
        }
        self.open.remove(&id.seq);
        self.report.acknowledged += 1;
        self.bar.set_message(format!("{} sent", self.report.acknowledged));
        true
    }

    /// Waits for what was sent, bounded, and gives the producer back.
    pub(super) async fn end(mut self) -> Report {
        let flush = async {
            while !self.open.is_empty() {
                let Some(fate) = self.fates.recv().await else { break };
                self.settle(&fate);
                if self.report.refused.is_some() {
                    break;
                }
            }
        };
        drop(timeout(FLUSH, flush).await);
        self.report.up_to = self.open.first().map_or(self.last, |seq| seq - 1);
        self.bar.finish_and_clear();
        if let Some(producers) = self.producers {
            drop(tokio::task::spawn_blocking(move || producers.discard().end()).await);
        }
        self.report
    }
}
