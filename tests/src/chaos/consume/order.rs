//! Order of keys among the effects of a group that promises it.
//!
//! The order that counts is that of the first copies on the source. A message that a replay handled is excepted: it
//! was dead, the key went on behind it, and its replay comes at the front of what still waits.

use std::collections::{HashMap, HashSet};

use waybill_event::OrderEvent;
use waybill_testkit::topics::Record;

use super::judge::Case;
use super::world::{Effect, id};

/// No message of a key is handled after a later one, none is passed over, and no two of a key side by side. Returns how
/// many ran beside a replay of their key: a replay comes from another partition, and may.
pub(crate) fn check(case: &mut Case<'_>) -> usize {
    let mut beside = 0;
    let group = case.group;
    let by_replay =
        |effect: &Effect| group.inbox.get(&effect.message_id).is_some_and(|row| row.replay.is_some());
    let mut keys: HashMap<&[u8], Vec<(usize, &Effect)>> = HashMap::new();
    for effect in &group.effects {
        let Some((place, record)) = case.originals.get(&effect.message_id) else { continue };
        // A null key is no key.
        let Some(key) = record.key.as_deref() else { continue };
        keys.entry(key).or_default().push((*place, effect));
    }
    for effects in keys.values() {
        let mut newest: Option<(usize, &Effect)> = None;
        let mut before: Option<i64> = None;
        for (place, effect) in effects {
            if effect.previous != before {
                let unseen = || {
                    effects
                        .iter()
                        .map(|(_, e)| *e)
                        .filter(|e| e.seq < effect.seq && Some(e.seq) > effect.previous)
                };
                if by_replay(effect) || unseen().all(by_replay) {
                    beside += 1;
                } else {
                    let seen = format!("{effect:?} did not see {:?}", unseen().collect::<Vec<_>>());
                    case.find("side by side", effect.message_id, seen);
                }
            }
            before = Some(effect.seq);
            if by_replay(effect) {
                continue;
            }
            if let Some((later, newest)) = newest.filter(|(later, _)| later > place) {
                let seen = format!("{place} after {later}: {effect:?} after {newest:?}");
                case.find("inversion", effect.message_id, seen);
            }
            newest = newest.filter(|(later, _)| later > place).or(Some((*place, effect)));
        }
    }
    passed(case, &keys);
    beside
}

/// What was neither handled nor dead when a later message of its key was handled. What cannot be decoded has no place
/// in the order: it is dead-lettered beside the batch.
fn passed(case: &mut Case<'_>, keys: &HashMap<&[u8], Vec<(usize, &Effect)>>) {
    let group = case.group;
    let mut over: HashSet<_> = group.inbox.keys().copied().collect();
    over.extend(group.dead_letters.iter().map(id));
    let newest: HashMap<&[u8], usize> = keys
        .iter()
        .filter_map(|(key, effects)| Some((*key, effects.iter().map(|(place, _)| *place).max()?)))
        .collect();
    let passed: Vec<_> = case
        .originals
        .iter()
        .filter(|(id, (place, record))| {
            let newest = record.key.as_deref().and_then(|key| newest.get(key));
            newest.is_some_and(|newest| newest > place) && !over.contains(id) && decodes(record)
        })
        .map(|(id, (place, record))| (*id, format!("{place}, key {}", record.key_text())))
        .collect();
    for (id, seen) in passed {
        case.find("passed over", id, seen);
    }
}

fn decodes(record: &Record) -> bool {
    record.value.as_deref().is_some_and(|value| waybill_event::decode::<OrderEvent>(value).is_ok())
}
