//! One batch of records in one transaction: new ones only, each item's state by [`super::merge`].

use std::collections::{BTreeMap, HashMap, HashSet};

use sqlx::PgPool;
use uuid::Uuid;
use waybill_event::ReplayOutcome;
use waybill_event::outcome::kind::{ALREADY_PROCESSED, RESOLVED};
use waybill_service::postgres;

use super::letter::{Letter, item_id};
use super::merge::{Death, Standing, Told};
use super::record::Raw;
use super::store::{self, FailureKey, ItemRow, NewRecord};

/// What arrived, in the order of each partition.
#[derive(Debug, Default)]
pub struct Batch {
    /// Dead letters.
    pub letters: Vec<(Raw, Letter)>,
    /// Outcomes of replays.
    pub outcomes: Vec<ReplayOutcome>,
    /// About how many bytes it holds.
    pub(super) bytes: usize,
}

impl Batch {
    /// Adds a dead letter.
    pub fn push(&mut self, raw: Raw) {
        self.bytes += raw.size();
        let letter = Letter::read(&raw);
        self.letters.push((raw, letter));
    }

    pub(super) fn len(&self) -> usize {
        self.letters.len() + self.outcomes.len()
    }
}

/// Why a batch is not in the index.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database does not answer, or refuses.
    #[error("the index cannot be written")]
    Database(#[from] sqlx::Error),
    /// Another console indexed the same records meanwhile.
    #[error("another process was faster")]
    Raced,
}

/// Writes the batch; what is there already is left as it is. Gives the number of dead letters that were new.
///
/// # Errors
/// Nothing of the batch is in the index.
pub async fn write(pool: &PgPool, batch: &Batch) -> Result<u64, Error> {
    let mut tx = postgres::begin(pool).await?;
    let told = outcomes(batch);
    store::add_outcomes(&mut tx, &told).await?;
    let known = store::known_places(&mut tx, batch).await?;
    let mut seen = HashSet::new();
    let fresh: Vec<&(Raw, Letter)> = batch
        .letters
        .iter()
        .filter(|(raw, _)| {
            let place = (raw.topic.as_str(), raw.partition, raw.offset, raw.timestamp);
            !known.contains(&(raw.topic.clone(), raw.partition, raw.offset, raw.timestamp))
                && seen.insert(place)
        })
        .collect();
    let failures = failures(&mut tx, &fresh).await?;
    let ids = store::draw_ids(&mut tx, fresh.len()).await?;
    let touched: HashSet<Uuid> =
        fresh.iter().map(|(_, letter)| letter.item_id).chain(told.iter().map(|told| told.0)).collect();
    let touched: Vec<Uuid> = touched.into_iter().collect();
    let mut items = store::lock_items(&mut tx, &touched).await?;
    let words = store::outcomes_of(&mut tx, &touched).await?;
    let mut records = Vec::with_capacity(fresh.len());
    let mut order: Vec<usize> = (0..fresh.len()).collect();
    order.sort_by_key(|index| fresh[*index].1.failed_at);
    for index in order {
        let (raw, letter) = fresh[index];
        let failure = failures[&FailureKey::of(raw, letter)];
        add(&mut items, fresh[index], ids[index], failure);
        records.push(NewRecord { record_id: ids[index], raw, letter });
    }
    for item in items.values_mut() {
        if let Some(words) = words.get(&item.item_id) {
            let before = item.standing.state;
            item.standing.hear(words);
            item.changed |= item.standing.state != before;
        }
    }
    let (new, known): (Vec<&ItemRow>, Vec<&ItemRow>) = items.values().partition(|item| item.is_new);
    store::insert_items(&mut tx, &new).await?;
    store::insert_records(&mut tx, &records).await?;
    let changed: Vec<&ItemRow> = known.into_iter().filter(|item| item.changed).collect();
    store::update_items(&mut tx, &changed).await?;
    store::settle_failed(&mut tx, &fresh).await?;
    store::settle_told(&mut tx, &told).await?;
    tx.commit().await?;
    Ok(records.len() as u64)
}

/// The outcomes by item and replay, the best of each.
fn outcomes(batch: &Batch) -> Vec<(Uuid, Told)> {
    let mut best: BTreeMap<(Uuid, Uuid), Told> = BTreeMap::new();
    for outcome in &batch.outcomes {
        let resolved = match outcome.outcome.as_str() {
            RESOLVED => true,
            ALREADY_PROCESSED => false,
            // An open set: a word that is not known yet settles nothing.
            _ => continue,
        };
        let item = item_id(&outcome.consumer_group, &outcome.topic, outcome.message_id);
        let told = Told { replay_id: outcome.replay_id, resolved, occurred_at: outcome.occurred_at };
        let slot = best.entry((item, told.replay_id)).or_insert(told);
        if told.resolved && !slot.resolved {
            *slot = told;
        }
    }
    best.into_iter().map(|((item, _), told)| (item, told)).collect()
}

async fn failures(
    tx: &mut sqlx::PgConnection,
    fresh: &[&(Raw, Letter)],
) -> Result<BTreeMap<FailureKey, i64>, sqlx::Error> {
    let mut spans = BTreeMap::new();
    let mut hours = BTreeMap::new();
    for (raw, letter) in fresh {
        let key = FailureKey::of(raw, letter);
        let span = spans.entry(key.clone()).or_insert((raw.timestamp, raw.timestamp));
        *span = (span.0.min(raw.timestamp), span.1.max(raw.timestamp));
        *hours.entry((key, raw.timestamp.timestamp() / 3600)).or_insert(0_i64) += 1;
    }
    let failures = store::add_failures(tx, &spans).await?;
    let hours: Vec<(i64, i64, i64)> =
        hours.into_iter().map(|((key, hour), count)| (failures[&key], hour, count)).collect();
    store::add_hours(tx, &hours).await?;
    Ok(failures)
}

fn death(letter: &Letter) -> Death {
    Death { replays: letter.replays, failed_at: letter.failed_at, replay_id: letter.replay_id }
}

fn add<'a>(
    items: &mut HashMap<Uuid, ItemRow<'a>>,
    source: &'a (Raw, Letter),
    record_id: i64,
    failure_id: i64,
) {
    let (raw, letter) = source;
    let item = items.entry(letter.item_id).or_insert_with(|| ItemRow {
        item_id: letter.item_id,
        is_new: true,
        changed: true,
        standing: Standing::new(death(letter)),
        failure_id,
        record_id,
        deaths: 0,
        replays: 0,
        first_dead_at: raw.timestamp,
        source: None,
    });
    item.changed = true;
    item.deaths += 1;
    item.replays = item.replays.max(letter.replays);
    item.first_dead_at = item.first_dead_at.min(raw.timestamp);
    if item.standing.die(death(letter)) {
        item.failure_id = failure_id;
        item.record_id = record_id;
        item.source = Some(source);
    }
}
