//! Planted faults: the checker must find each of them, and nothing in a world that is well.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta};
use uuid::Uuid;
use waybill_event::{OrderEvent, ReplayOutcome, headers, outcome::kind};
use waybill_testkit::topics::Record;

use super::judge::{Verdict, judge};
use super::world::{Effect, Group, Parked, Row, Where, World};
use crate::events::order;

fn uuid(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn record(n: u128, key: &str, more: &[(&str, &str)]) -> Record {
    let text = |text: &str| Some(text.as_bytes().to_vec());
    let mut list = vec![("null".to_owned(), None), (headers::CE_ID.to_owned(), text(&uuid(n).to_string()))];
    list.extend(more.iter().map(|(name, value)| ((*name).to_owned(), text(value))));
    let order = OrderEvent { occurred_at: DateTime::UNIX_EPOCH, ..order(uuid(9), 1) };
    let value = waybill_event::encode(&order).ok();
    Record { partition: 0, offset: n as i64, timestamp: None, key: text(key), value, headers: list }
}

fn effect(seq: i64, n: u128, previous: Option<i64>) -> Effect {
    Effect {
        seq,
        message_id: uuid(n),
        key: Some("k".to_owned()),
        worker: 1,
        attempt: 1,
        previous,
        due_at: None,
        handled_at: DateTime::UNIX_EPOCH,
    }
}

const REPLAY: u128 = 77;

/// Messages 1 to 6 of key `k`: three done, 4 dead, 5 and 6 wait. A replay handled 2, which had been dead.
fn well() -> World {
    let row = |done, replay| Row { done, replay };
    let again = record(2, "k", &[(headers::REPLAY_ID, &uuid(REPLAY).to_string())]);
    let group = Group {
        name: "strict".to_owned(),
        strict: true,
        effects: vec![effect(10, 1, None), effect(11, 3, Some(10)), effect(12, 2, Some(11))],
        inbox: HashMap::from([
            (uuid(1), row(true, None)),
            (uuid(2), row(true, Some(uuid(REPLAY)))),
            (uuid(3), row(true, None)),
            (uuid(4), row(false, None)),
        ]),
        parked: vec![Parked { message_id: uuid(5), replay_id: None }],
        pending: HashMap::from([(uuid(6), vec![Where::Source])]),
        retries: Vec::new(),
        replays: vec![again],
        dead_letters: vec![record(2, "k", &[]), record(4, "k", &[("waybill-group", "g")])],
        outcomes: vec![outcome(2, REPLAY, kind::RESOLVED)],
    };
    World { source: (1..=6).map(|n| record(n, "k", &[])).collect(), groups: vec![group] }
}

fn outcome(n: u128, replay: u128, outcome: &str) -> ReplayOutcome {
    ReplayOutcome {
        message_id: uuid(n),
        replay_id: uuid(replay),
        consumer_group: "strict".to_owned(),
        topic: "orders.v1".to_owned(),
        outcome: outcome.to_owned(),
        occurred_at: chrono::Utc::now(),
    }
}

/// The rules that are found broken after a change.
fn broken(drained: bool, change: impl FnOnce(&mut World)) -> Vec<&'static str> {
    let mut world = well();
    change(&mut world);
    let Verdict { findings, .. } = judge(&world, drained);
    let mut rules: Vec<_> = findings.iter().map(|finding| finding.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

fn with(change: impl FnOnce(&mut Group)) -> Vec<&'static str> {
    broken(false, |world| change(&mut world.groups[0]))
}

#[test]
fn a_world_that_is_well_has_no_findings_and_is_counted() {
    let Verdict { counts, findings } = judge(&well(), false);
    assert_eq!(findings, []);
    let counts = &counts[0];
    assert_eq!((counts.done, counts.replayed, counts.dead, counts.parked, counts.source), (3, 1, 1, 1, 1));
}

#[test]
fn a_lost_message_is_found() {
    assert_eq!(with(|group| group.parked.clear()), ["lost"]);
    assert_eq!(with(|group| group.pending.clear()), ["lost"]);
    assert_eq!(
        with(|group| {
            group.inbox.remove(&uuid(4));
        }),
        ["lost"]
    );
}

#[test]
fn a_double_effect_is_found_and_one_that_the_inbox_does_not_know() {
    assert_eq!(with(|group| group.effects.push(effect(13, 2, Some(12)))), ["two effects"]);
    assert_eq!(with(|group| drop(group.effects.pop())), ["effect and row differ"]);
    assert!(with(|group| group.effects.push(effect(13, 5, Some(12)))).contains(&"effect and row differ"));
    assert_eq!(with(|group| group.effects.push(effect(13, 99, Some(12)))), ["effect of nothing"]);
}

#[test]
fn a_dead_row_without_a_dead_letter_and_an_altered_copy_are_found() {
    assert_eq!(with(|group| drop(group.dead_letters.pop())), ["dead without a dead letter"]);
    assert_eq!(with(|group| group.dead_letters[1].value = None), ["altered dead letter"]);
    assert_eq!(with(|group| group.dead_letters[1].headers.swap(0, 1)), ["altered dead letter"]);
    assert_eq!(with(|group| group.dead_letters[1].headers[0].1 = Some(Vec::new())), ["altered dead letter"]);
    assert_eq!(with(|group| group.retries.push(record(99, "k", &[]))), ["altered retry"]);
    assert_eq!(with(|group| group.replays[0].key = None), ["altered replay"]);
}

#[test]
fn a_copy_of_either_of_two_that_lie_in_different_partitions_is_no_altered_one() {
    let with = |letter: Record| {
        broken(false, |world| {
            world.source.push(Record { partition: 1, key: None, ..record(4, "k", &[]) });
            world.groups[0].dead_letters[1] = letter;
        })
    };
    assert!(with(Record { partition: 1, key: None, ..record(4, "k", &[]) }).is_empty());
    assert_eq!(with(Record { key: None, ..record(4, "k", &[]) }), ["altered dead letter"]);
}

#[test]
fn a_retry_before_its_time_and_a_header_that_grows_are_found() {
    let early =
        |group: &mut Group| group.effects[0].due_at = Some(DateTime::UNIX_EPOCH + TimeDelta::seconds(1));
    assert_eq!(with(early), ["before it was due"]);
    let grown = |group: &mut Group| {
        let header = group.dead_letters[1].headers[2].clone();
        group.dead_letters[1].headers.push(header);
    };
    assert_eq!(with(grown), ["header repeated"]);
}

#[test]
fn an_inversion_is_found_and_that_two_of_a_key_ran_side_by_side() {
    let inverted = |group: &mut Group| {
        let (first, second) = (group.effects[0].message_id, group.effects[1].message_id);
        (group.effects[0].message_id, group.effects[1].message_id) = (second, first);
    };
    assert_eq!(with(inverted), ["inversion"]);
    assert_eq!(with(|group| group.effects[1].previous = None), ["side by side"]);
    let mut beside = well();
    beside.groups[0].effects[2].previous = Some(10);
    let Verdict { counts, findings } = judge(&beside, false);
    assert_eq!((counts[0].beside, findings), (1, Vec::new()), "a replay may");
    // Only a group that promises it is judged by it.
    assert!(
        with(|group| {
            group.strict = false;
            inverted(group);
        })
        .is_empty()
    );
}

#[test]
fn a_message_that_is_passed_over_is_found_before_it_is_late() {
    let passed = with(|group| {
        group.inbox.remove(&uuid(1));
        group.effects.remove(0);
        group.effects[0].previous = None;
        group.pending.insert(uuid(1), vec![Where::Source]);
    });
    assert_eq!(passed, ["passed over"]);
}

#[test]
fn at_the_end_nothing_may_be_on_its_way_and_every_replay_is_answered() {
    assert_eq!(broken(true, |_| {}), ["left on its way"]);
    let done = |world: &mut World| {
        world.source.truncate(4);
        world.groups[0].parked.clear();
        world.groups[0].pending.clear();
    };
    assert!(broken(true, done).is_empty());
    let unanswered = broken(true, |world| {
        done(world);
        world.groups[0].outcomes.clear();
    });
    assert_eq!(unanswered, ["resolved and not told", "unanswered replay"]);
    assert_eq!(with(|group| group.outcomes.push(outcome(2, 78, kind::RESOLVED))), ["wrong outcome"]);
    assert_eq!(
        with(|group| group.outcomes.push(outcome(2, REPLAY, kind::ALREADY_PROCESSED))),
        ["wrong outcome"]
    );
    assert!(with(|group| group.outcomes.push(outcome(2, 78, kind::ALREADY_PROCESSED))).is_empty());
}
