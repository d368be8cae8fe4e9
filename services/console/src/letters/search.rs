//! From rows to what is shown.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use sqlx::PgPool;
use uuid::Uuid;

use super::store::{self, CountRow, FailureRow, HourRow, ItemRow, TopicRow};
use super::view::{Counts, Detail, Group, Hour, Item, Items, Topic};
use super::{Error, Filter, key_text, payload};
use crate::index::from_json;
use crate::{Names, State};

/// Most groups of a list.
const MAX_GROUPS: usize = 1000;

/// Every dead-letter topic that exists or has letters here.
pub(crate) async fn topics(pool: &PgPool) -> Result<Vec<Topic>, Error> {
    let mut tx = store::begin(pool).await?;
    let failures = store::failures(&mut tx, None).await?;
    let counts = store::counts(&mut tx, None).await?;
    let ids: Vec<_> = failures.iter().map(|failure| failure.failure_id).collect();
    let hours = store::hours(&mut tx, &ids).await?;
    let known = store::topics(&mut tx).await?;
    tx.commit().await?;
    Ok(topics_of(&failures, &counts, &hours, known, Utc::now()))
}

fn topics_of(
    failures: &[FailureRow],
    counts: &[CountRow],
    hours: &[HourRow],
    known: Vec<TopicRow>,
    now: DateTime<Utc>,
) -> Vec<Topic> {
    let empty = |topic: &str| Topic {
        topic: topic.to_owned(),
        groups: Vec::new(),
        partitions: None,
        counts: Counts::default(),
        unsettled: 0,
        oldest_at: None,
        oldest_age_s: None,
        retention_s: None,
        deletes_in_s: None,
        arrived_last_hour: 0,
        arrived_last_day: 0,
        newest_error_code: None,
    };
    let mut topics: BTreeMap<&str, Topic> = BTreeMap::new();
    for row in &known {
        let topic = topics.entry(&row.dlt_topic).or_insert_with(|| empty(&row.dlt_topic));
        topic.partitions = Some(row.partitions);
        topic.retention_s = row.retention_ms.map(|ms| ms / 1000);
    }
    let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut newest: HashMap<&str, DateTime<Utc>> = HashMap::new();
    let mut of: HashMap<i64, &str> = HashMap::new();
    for row in failures {
        of.insert(row.failure_id, &row.dlt_topic);
        let topic = topics.entry(&row.dlt_topic).or_insert_with(|| empty(&row.dlt_topic));
        if !row.consumer_group.is_empty() {
            groups.entry(&row.dlt_topic).or_default().insert(&row.consumer_group);
        }
        let newest = newest.entry(&row.dlt_topic).or_insert(row.last_seen);
        if row.last_seen >= *newest {
            *newest = row.last_seen;
            topic.newest_error_code = Some(row.error_code.clone());
        }
    }
    for row in counts {
        let topic = of.get(&row.failure_id).and_then(|name| topics.get_mut(name));
        let (Some(topic), Some(state)) = (topic, State::named(&row.state)) else { continue };
        topic.counts.add(state, row.count);
        if State::UNSETTLED.contains(&state) {
            topic.oldest_at = Some(topic.oldest_at.map_or(row.oldest, |oldest| oldest.min(row.oldest)));
        }
    }
    for row in hours {
        let Some(topic) = of.get(&row.failure_id).and_then(|name| topics.get_mut(name)) else { continue };
        topic.arrived_last_day += row.arrived;
        if (now - row.hour).num_hours() < 2 {
            topic.arrived_last_hour += row.arrived;
        }
    }
    let finish = |mut topic: Topic| {
        topic.unsettled = topic.counts.unsettled();
        topic.oldest_age_s = topic.oldest_at.map(|at| (now - at).num_seconds().max(0));
        topic.deletes_in_s = topic.oldest_age_s.zip(topic.retention_s).map(|(age, kept)| (kept - age).max(0));
        let names = groups.get(topic.topic.as_str()).into_iter().flatten();
        topic.groups = names.map(|name| (*name).to_owned()).collect();
        topic
    };
    let mut topics: Vec<Topic> = topics.into_values().map(finish).collect();
    topics.sort_by(|a, b| b.unsettled.cmp(&a.unsettled).then_with(|| a.topic.cmp(&b.topic)));
    topics
}

/// Groups that a filter's marks select; without a state those with something unsettled.
pub(crate) async fn groups(pool: &PgPool, names: &Names, filter: &Filter) -> Result<Vec<Group>, Error> {
    filter.check_of_groups()?;
    let mut tx = store::begin(pool).await?;
    let selected = filter.select(&mut tx, names).await?;
    let failures = store::failures(&mut tx, selected.failures.as_deref()).await?;
    let mut counts: HashMap<i64, Counts> = HashMap::new();
    for row in store::counts(&mut tx, selected.failures.as_deref()).await? {
        if let Some(state) = State::named(&row.state) {
            counts.entry(row.failure_id).or_default().add(state, row.count);
        }
    }
    let ids: Vec<_> = failures.iter().map(|failure| failure.failure_id).collect();
    let mut hours: HashMap<i64, Vec<Hour>> = HashMap::new();
    for row in store::hours(&mut tx, &ids).await? {
        hours.entry(row.failure_id).or_default().push(Hour { hour: row.hour, arrived: row.arrived });
    }
    tx.commit().await?;
    let wanted = |counts: &Counts| match &selected.states {
        None => counts.unsettled() > 0,
        Some(states) => State::ALL.iter().any(|state| {
            let mut one = Counts::default();
            one.add(*state, 1);
            states.iter().any(|name| name == state.name()) && overlap(counts, &one)
        }),
    };
    let mut groups: Vec<Group> = failures
        .into_iter()
        .filter(|row| selected.since.is_none_or(|since| row.last_seen >= since))
        .filter(|row| selected.until.is_none_or(|until| row.first_seen < until))
        .map(|row| {
            let counts = counts.get(&row.failure_id).copied().unwrap_or_default();
            Group {
                hours: hours.remove(&row.failure_id).unwrap_or_default(),
                topic: row.dlt_topic,
                consumer_group: row.consumer_group,
                source_topic: row.source_topic,
                error_code: row.error_code,
                error_class: row.error_class,
                event_type: row.event_type,
                unsettled: counts.unsettled(),
                counts,
                first_seen: row.first_seen,
                last_seen: row.last_seen,
            }
        })
        .filter(|group| wanted(&group.counts))
        .collect();
    groups.sort_by(|a, b| b.unsettled.cmp(&a.unsettled).then_with(|| b.last_seen.cmp(&a.last_seen)));
    groups.truncate(MAX_GROUPS);
    Ok(groups)
}

/// Whether both count something in the same state.
fn overlap(a: &Counts, b: &Counts) -> bool {
    let of =
        |c: &Counts| [c.open, c.planned, c.sent, c.failed_again, c.resolved, c.already_processed, c.archived];
    of(a).into_iter().zip(of(b)).any(|(a, b)| a > 0 && b > 0)
}

/// A page of dead letters.
pub(crate) async fn list(
    pool: &PgPool,
    names: &Names,
    filter: &Filter,
    cursor: Option<&str>,
    limit: i64,
) -> Result<Items, Error> {
    let after = cursor.map(position).transpose()?;
    let mut tx = store::begin(pool).await?;
    let selected = filter.select(&mut tx, names).await?;
    let mut rows = store::list(&mut tx, &selected, after, limit + 1).await?;
    tx.commit().await?;
    let more = rows.len() as i64 > limit;
    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let next = rows.last().filter(|_| more).map(|last| cursor_of(last.dead_at, last.item_id));
    Ok(Items { items: rows.into_iter().map(item).collect(), next })
}

/// Letters that were replayed as often as is allowed.
pub(crate) async fn loops(pool: &PgPool, cap: i32, limit: i64) -> Result<Items, Error> {
    let mut tx = store::begin(pool).await?;
    let rows = store::loops(&mut tx, cap, limit).await?;
    Ok(Items { items: rows.into_iter().map(item).collect(), next: None })
}

/// One letter; `may_see` its payload.
pub(crate) async fn find(
    pool: &PgPool,
    names: &Names,
    id: Uuid,
    may_see: bool,
    trace_url: Option<&str>,
) -> Result<Detail, Error> {
    let mut tx = store::begin(pool).await?;
    let one = super::Selection { ids: Some(vec![id]), ..Default::default() };
    let row = store::list(&mut tx, &one, None, 1).await?.pop().ok_or(Error::NotFound)?;
    let record = store::record(&mut tx, row.record_id, may_see).await?.ok_or(Error::NotFound)?;
    let deaths = store::deaths(&mut tx, id).await?;
    let sendings = store::sendings(&mut tx, id).await?;
    tx.commit().await?;
    let payload = if may_see {
        payload::show(names.plain(&row.source_topic), record.value.as_deref(), row.value_left_out)
    } else {
        payload::mask(row.value_bytes, row.value_left_out)
    };
    let trace_url =
        trace_url.zip(row.trace_id.as_deref()).map(|(url, trace)| url.replace("{trace_id}", trace));
    Ok(Detail {
        item: item(row),
        origin_topic: record.origin_topic,
        origin_timestamp: record.origin_timestamp,
        headers: from_json(&record.headers).into_iter().map(payload::header).collect(),
        payload,
        history: deaths,
        sendings,
        trace_url,
        command: format!("waybill-console dlt show {id}"),
    })
}

pub(super) fn item(row: ItemRow) -> Item {
    let state = State::named(&row.state).unwrap_or(State::Open);
    let waiting = row.sent_at.filter(|_| state == State::Sent);
    Item {
        item_id: row.item_id,
        state,
        topic: row.dlt_topic,
        consumer_group: row.consumer_group,
        source_topic: row.source_topic,
        message_id: row.message_id,
        key: row.key.as_deref().map(key_text),
        event_type: row.event_type,
        error_code: row.error_code,
        error_class: row.error_class,
        attempts: row.attempts,
        deaths: row.deaths,
        replays: row.replays,
        dead_at: row.dead_at,
        first_dead_at: row.first_dead_at,
        origin_partition: row.origin_partition,
        origin_offset: row.origin_offset,
        trace_id: row.trace_id,
        value_bytes: row.value_bytes,
        replay_id: row.replay_id,
        sent_at: row.sent_at,
        waiting_s: waiting.map(|at| (Utc::now() - at).num_seconds().max(0)),
        archived_reason: row.archived_reason,
    }
}

fn cursor_of(at: DateTime<Utc>, id: Uuid) -> String {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&at.timestamp_micros().to_be_bytes());
    bytes[8..].copy_from_slice(id.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

fn position(cursor: &str) -> Result<(DateTime<Utc>, Uuid), Error> {
    let bytes: Option<[u8; 24]> = URL_SAFE_NO_PAD.decode(cursor).ok().and_then(|b| b.try_into().ok());
    let bytes = bytes.ok_or(Error::Cursor)?;
    let (mut micros, mut id) = ([0; 8], [0; 16]);
    micros.copy_from_slice(&bytes[..8]);
    id.copy_from_slice(&bytes[8..]);
    // Only times that the database can hold: a forged cursor is no failure of ours.
    let micros = Some(i64::from_be_bytes(micros)).filter(|m| (0..=253_402_300_799_999_999).contains(m));
    let at = micros.and_then(DateTime::from_timestamp_micros).ok_or(Error::Cursor)?;
    Ok((at, Uuid::from_bytes(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_gives_its_place_back_and_damage_is_an_error() {
        let (at, id) = (DateTime::from_timestamp_micros(1_790_000_000_123_456).unwrap(), Uuid::now_v7());
        let cursor = cursor_of(at, id);
        assert_eq!(position(&cursor).unwrap(), (at, id));
        for damaged in ["", "x", &cursor[1..], &"_".repeat(32)] {
            assert!(matches!(position(damaged), Err(Error::Cursor)), "{damaged}");
        }
    }
}
