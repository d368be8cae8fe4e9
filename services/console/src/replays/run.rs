//! Driving one run: send what may be sent, hear what became of it, stop when it must.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures::future::join_all;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_service::postgres;

use super::schedule::{Key, Position, Schedule};
use super::send::{Outgoing, Sender, Stamp};
use super::store::{self, Claimed, Held, Marked, Standing};
use super::traces;
use crate::audit::{self, Entry};
use crate::index::from_json;
use crate::metrics::Metrics;

/// Between two looks at what is under way.
const TICK: Duration = Duration::from_millis(50);
/// Most records of one step.
const STEP: usize = 50;
/// Most bytes held for one step is [`STEP`] records; least records that may be under way without outcome.
const WINDOW: usize = 50;
/// How long a run that ends early still waits for outcomes.
const DRAIN: Duration = Duration::from_secs(10);
/// What is told of a letter that a dead process had on its way when the replay topic cannot be read.
const IN_DOUBT: &str =
    "may have been sent: a process died while it was on its way, and the replay topic cannot be read";

/// What every run of a process needs.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) pool: PgPool,
    pub(super) sender: Sender,
    pub(super) owner: Uuid,
    pub(super) lease: Duration,
    pub(super) outcome_timeout: Duration,
    pub(super) metrics: Metrics,
}

struct Run<'a> {
    context: &'a Context,
    claimed: Claimed,
    schedule: Schedule,
    /// Acknowledged by Kafka, without outcome.
    under_way: HashSet<Position>,
    good: usize,
    failures: usize,
    silent: usize,
    canary: usize,
    allowance: f64,
    allowed_at: Instant,
    renewed_at: Instant,
    looked_at: Option<Instant>,
    ending: Option<Ending>,
}

struct Ending {
    state: &'static str,
    reason: Option<String>,
    at_latest: Instant,
}

/// Drives the run until it ends, the lease is lost, or the process stops.
pub(super) async fn drive(
    context: &Context,
    claimed: Claimed,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let id = claimed.replay_id;
    let driven = async {
        recover(context, &claimed).await?;
        let mut run = Run::load(context, claimed).await?;
        while !shutdown.is_cancelled() {
            if run.step().await? {
                return Ok(());
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }
    .await;
    // Interrupted or stopping: another process, or this one, need not wait for the lease.
    store::let_go(&context.pool, id, context.owner).await?;
    driven
}

/// What a dead process had on its way has arrived or ended by now, for its lease has run out: look which.
/// When that cannot be seen, the run waits, unless somebody has asked it to stop: then they stay in doubt.
async fn recover(context: &Context, claimed: &Claimed) -> anyhow::Result<()> {
    let id = claimed.replay_id;
    let doubtful = store::sending_of(&context.pool, id).await?;
    if doubtful.is_empty() {
        return Ok(());
    }
    let floors = store::floors(&context.pool, id).await?;
    let found = match traces::sent(&context.sender, id, floors).await {
        Ok(found) => found,
        Err(error) if claimed.cancel_requested => {
            tracing::warn!(replay_id = %id, letters = doubtful.len(), error = format!("{error:#}"), "whether they were sent is not known");
            let positions: Vec<i32> = doubtful.iter().map(|letter| letter.0).collect();
            return Ok(store::doubt(&context.pool, id, &positions, IN_DOUBT).await?);
        }
        Err(error) => return Err(error),
    };
    let (sent, unsent): (Vec<_>, Vec<_>) = doubtful
        .into_iter()
        .partition(|(_, topic, message)| message.is_some_and(|id| found.contains(&(topic.clone(), id))));
    let positions =
        |list: Vec<(i32, String, Option<Uuid>)>| list.into_iter().map(|letter| letter.0).collect();
    let (sent, unsent): (Vec<i32>, Vec<i32>) = (positions(sent), positions(unsent));
    tracing::info!(replay_id = %id, sent = sent.len(), unsent = unsent.len(), "records that were on their way");
    store::mark_sent(&context.pool, id, &sent).await?;
    store::unmark(&context.pool, id, &unsent).await?;
    Ok(())
}

impl<'a> Run<'a> {
    async fn load(context: &'a Context, claimed: Claimed) -> anyhow::Result<Self> {
        let letters = store::letters(&context.pool, claimed.replay_id).await?;
        let topics: HashSet<String> = letters.iter().map(|letter| letter.target_topic.clone()).collect();
        let taken = letters.iter().filter(|letter| letter.state != "refused").count();
        // A run that is to stop sends nothing more, and needs no broker for it.
        if !claimed.cancel_requested {
            let ends = traces::ends(&context.sender, topics).await?;
            // Before the first record; later words do not count.
            store::add_floors(&context.pool, claimed.replay_id, &ends).await?;
        }
        let now = Instant::now();
        let mut run = Self {
            context,
            canary: usize::try_from(claimed.canary).unwrap_or(0).min(taken),
            claimed,
            schedule: Schedule::default(),
            under_way: HashSet::new(),
            good: 0,
            failures: 0,
            silent: 0,
            allowance: 1.0,
            allowed_at: now,
            // Claimed a moment ago; the first step renews.
            renewed_at: now,
            looked_at: None,
            ending: None,
        };
        run.stand(&letters);
        let stopped = run.schedule.take_stopped();
        run.give_up(&stopped).await?;
        Ok(run)
    }

    /// Takes the run up where it stood.
    fn stand(&mut self, letters: &[Standing]) {
        for letter in letters {
            let key = letter.key.as_ref().map_or(Key::None(letter.position), |digest| {
                Key::Of(letter.target_topic.clone(), digest.clone())
            });
            match letter.state.as_str() {
                "pending" => self.schedule.add(letter.position, key),
                "sent" => {
                    self.schedule.add_under_way(letter.position, key);
                    self.under_way.insert(letter.position);
                }
                "resolved" | "already_processed" => self.good += 1,
                // Handled or put away since the plan: nothing of the key stands before the others.
                "refused"
                    if matches!(
                        letter.detail.as_deref(),
                        Some("resolved" | "already_processed" | "archived" | "gone")
                    ) => {}
                state => {
                    self.failures += usize::from(matches!(state, "failed_again" | "failed"));
                    self.silent += usize::from(state == "no_outcome");
                    self.schedule.add_failed(letter.position, key);
                }
            }
        }
    }

    /// One round. True when the run has ended, or is not this process's any more.
    async fn step(&mut self) -> anyhow::Result<bool> {
        let pause = (self.context.lease / 4).min(Duration::from_secs(1));
        if self.looked_at.is_none_or(|at| at.elapsed() >= pause) {
            self.looked_at = Some(Instant::now());
            match self.renew().await? {
                Held::No => return Ok(true),
                Held::Cancelled => self.end("cancelled", Some("cancelled by an operator".to_owned())).await?,
                Held::Yes => {}
            }
            self.expire().await?;
        }
        self.hear().await?;
        self.judge().await?;
        if let Some(ending) = &self.ending {
            if self.under_way.is_empty() || Instant::now() >= ending.at_latest {
                self.finish().await?;
                return Ok(true);
            }
            return Ok(false);
        }
        self.send().await?;
        Ok(false)
    }

    async fn renew(&mut self) -> Result<Held, sqlx::Error> {
        let asked = Instant::now();
        let id = self.claimed.replay_id;
        let held = store::renew(&self.context.pool, id, self.context.owner, self.context.lease).await?;
        self.renewed_at = asked;
        Ok(held)
    }

    /// Outcomes that have come.
    async fn hear(&mut self) -> Result<(), sqlx::Error> {
        if self.under_way.is_empty() {
            return Ok(());
        }
        let positions: Vec<_> = self.under_way.iter().copied().collect();
        for (position, state) in
            store::outcomes(&self.context.pool, self.claimed.replay_id, &positions).await?
        {
            self.under_way.remove(&position);
            match state.as_str() {
                "resolved" | "already_processed" => {
                    self.good += 1;
                    self.schedule.done(position);
                }
                _ => {
                    self.failures += 1;
                    self.fail(position).await?;
                }
            }
        }
        Ok(())
    }

    /// Outcomes that have not come in time.
    async fn expire(&mut self) -> Result<(), sqlx::Error> {
        let (pool, timeout) = (&self.context.pool, self.context.outcome_timeout);
        for position in store::overdue(pool, self.claimed.replay_id, timeout).await? {
            self.under_way.remove(&position);
            self.silent += 1;
            self.fail(position).await?;
        }
        Ok(())
    }

    /// Whether to go on.
    async fn judge(&mut self) -> Result<(), sqlx::Error> {
        if self.ending.is_some() {
            return Ok(());
        }
        let limit = usize::try_from(self.claimed.stop_after_failures).unwrap_or(usize::MAX);
        if self.in_canary() && self.failures > 0 {
            return self.end("stopped", Some("the canary failed".to_owned())).await;
        }
        if self.in_canary() && self.silent > 0 {
            return self.end("stopped", Some("the canary has no outcome".to_owned())).await;
        }
        if self.failures >= limit {
            return self.end("stopped", Some(format!("{} failures", self.failures))).await;
        }
        if self.schedule.left() == 0 && self.under_way.is_empty() {
            return self.end("done", None).await;
        }
        Ok(())
    }

    fn in_canary(&self) -> bool {
        self.good < self.canary
    }

    /// How many may be sent now.
    fn allowed(&mut self) -> usize {
        let rate = f64::from(self.claimed.rate);
        self.allowance += rate * self.allowed_at.elapsed().as_secs_f64();
        self.allowed_at = Instant::now();
        // What was not used up does not come back as a burst.
        self.allowance = self.allowance.min((rate / 10.0).max(1.0));
        let by_rate = self.allowance as usize;
        let window = WINDOW.max(usize::try_from(self.claimed.rate).unwrap_or(WINDOW) * 2);
        let by_window = window.saturating_sub(self.under_way.len());
        let by_canary = if self.in_canary() {
            self.canary.saturating_sub(self.good + self.under_way.len())
        } else {
            usize::MAX
        };
        by_rate.min(by_window).min(by_canary).min(STEP)
    }

    async fn send(&mut self) -> anyhow::Result<()> {
        let allowed = self.allowed();
        let positions = self.schedule.next(allowed);
        if positions.is_empty() {
            return Ok(());
        }
        self.allowance -= positions.len() as f64;
        let (pool, id) = (&self.context.pool, self.claimed.replay_id);
        fail::fail_point!("console.before_mark");
        let marked = store::mark_sending(pool, id, self.context.owner, &positions).await?;
        // A process that stood still may have lost its lease since. Its successor will look.
        anyhow::ensure!(self.renewed_at.elapsed() < self.context.lease / 2, "this process stood still");
        if marked.len() < positions.len() {
            // Cancelled or lost: the next look says which. What was not marked is given up or somebody else's.
            self.looked_at = None;
            for position in positions.iter().filter(|p| marked.iter().all(|m| m.position != **p)) {
                self.schedule.failed(*position);
            }
        }
        let (whole, broken): (Vec<Marked>, Vec<Marked>) = marked.into_iter().partition(|m| m.whole);
        self.refuse(&broken).await?;
        fail::fail_point!("console.before_send");
        let (sender, by) = (&self.context.sender, self.claimed.started_by);
        let sent = join_all(whole.into_iter().map(|letter| async move {
            let (position, item) = (letter.position, letter.item_id);
            let count = letter.replays.unwrap_or(0).saturating_add(1);
            let stamp = Stamp { replay_id: id, replayed_by: by, count };
            let sent = sender.send(&outgoing(letter), stamp).await;
            if let Err(error) = &sent {
                tracing::warn!(replay_id = %id, item_id = %item, %error, "a replay is not taken by Kafka");
            }
            (position, sent.map_err(|error| error.to_string()))
        }))
        .await;
        fail::fail_point!("console.after_ack");
        let taken: Vec<_> =
            sent.iter().filter(|(_, sent)| sent.is_ok()).map(|(position, _)| *position).collect();
        store::mark_sent(pool, id, &taken).await?;
        let failed: Vec<_> =
            sent.into_iter().filter_map(|(position, sent)| Some((position, sent.err()?))).collect();
        store::mark_failed(pool, id, &failed, "failed").await?;
        self.context.metrics.replayed(taken.len(), failed.len());
        self.under_way.extend(taken);
        for (position, _) in failed {
            self.failures += 1;
            self.fail(position).await?;
        }
        Ok(())
    }

    /// Letters that are not as they were taken. One that a late outcome of an earlier replay has settled is no failure.
    async fn refuse(&mut self, letters: &[Marked]) -> Result<(), sqlx::Error> {
        let settled = |letter: &Marked| {
            letter
                .item_state
                .clone()
                .filter(|state| matches!(state.as_str(), "resolved" | "already_processed"))
        };
        let why = |letter: &Marked| settled(letter).unwrap_or_else(|| "not held any more".to_owned());
        let refused: Vec<_> = letters.iter().map(|letter| (letter.position, why(letter))).collect();
        store::mark_failed(&self.context.pool, self.claimed.replay_id, &refused, "refused").await?;
        for letter in letters {
            match settled(letter) {
                Some(_) => self.schedule.done(letter.position),
                None => self.fail(letter.position).await?,
            }
        }
        Ok(())
    }

    /// The letter has failed: the rest of its key is not sent.
    async fn fail(&mut self, position: Position) -> Result<(), sqlx::Error> {
        let rest = self.schedule.failed(position);
        self.give_up(&rest).await
    }

    async fn give_up(&self, positions: &[Position]) -> Result<(), sqlx::Error> {
        if positions.is_empty() {
            return Ok(());
        }
        let reason = "an earlier letter of its key was not handled";
        store::stop(&self.context.pool, self.claimed.replay_id, Some(positions), reason).await
    }

    /// Sends nothing more; what is under way may still be heard of.
    async fn end(&mut self, state: &'static str, reason: Option<String>) -> Result<(), sqlx::Error> {
        if self.ending.is_some() {
            return Ok(());
        }
        let text = reason.as_deref().unwrap_or("the run has ended");
        store::stop(&self.context.pool, self.claimed.replay_id, None, text).await?;
        self.ending = Some(Ending { state, reason, at_latest: Instant::now() + DRAIN });
        Ok(())
    }

    async fn finish(&self) -> Result<(), sqlx::Error> {
        let Some(ending) = &self.ending else { return Ok(()) };
        let id = self.claimed.replay_id;
        let mut tx = postgres::begin(&self.context.pool).await?;
        let reason = ending.reason.as_deref();
        if store::finish(&mut tx, id, self.context.owner, ending.state, reason).await? {
            let entry = Entry::of(self.claimed.started_by, "replay_finished")
                .reference(id)
                .count("state", ending.state)
                .count("handled", self.good)
                .count("failures", self.failures)
                .count("without_outcome", self.silent + self.under_way.len());
            let audit = audit::add(&mut tx, &entry).await?;
            store::audit_end(&mut tx, audit, id).await?;
        }
        tx.commit().await?;
        tracing::info!(replay_id = %id, state = ending.state, handled = self.good, failures = self.failures, "replay has ended");
        Ok(())
    }
}

fn outgoing(letter: Marked) -> Outgoing {
    Outgoing {
        topic: letter.target_topic,
        partition: letter.partition,
        key: letter.key,
        value: letter.value,
        headers: letter.headers.as_ref().map(from_json).unwrap_or_default(),
    }
}
