//! The window against examples, and against a model of the database under random schedules.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;
use uuid::Uuid;

use super::super::cursor::{Cursors, Page};
use super::super::intake::{Catch, take};
use super::super::row::{Key, Row, RowId};
use super::super::store::Listed;
use super::{Taken, Window};

fn row(seq: i64, topic: &str, key: &str) -> Row {
    Row {
        id: RowId { seq, id: Uuid::from_u128(seq as u128) },
        bucket: waybill_outbox::bucket(key) % 2,
        key: Arc::new(Key { topic: topic.into(), key: key.to_owned() }),
        r#type: "t".to_owned(),
        payload: vec![0; 10],
        traceparent: None,
        tracestate: None,
        headers: None,
        created_at: chrono::DateTime::UNIX_EPOCH,
    }
}

fn filled(rows: &[(i64, &str, &str)]) -> Window {
    let mut window = Window::default();
    let fetch = window.begin_fetch();
    for (seq, topic, key) in rows {
        assert_eq!(window.take(row(*seq, topic, key)), Taken::New);
    }
    window.end_fetch(fetch);
    window
}

fn next(window: &mut Window) -> Option<RowId> {
    window.next(usize::MAX).map(|(row, _)| row.id)
}

fn seqs(window: &mut Window) -> Vec<i64> {
    std::iter::from_fn(|| next(window)).map(|id| id.seq).collect()
}

#[test]
fn rows_leave_in_seq_order_and_one_per_key() {
    let mut window = filled(&[(3, "t", "a"), (1, "t", "a"), (2, "t", "b"), (4, "u", "a")]);
    assert_eq!(seqs(&mut window), [1, 2, 4], "one of each (topic, key)");
    window.acked(row(1, "t", "a").id);
    assert_eq!(seqs(&mut window), [3]);
    assert_eq!(window.held().rows, 3);
}

#[test]
fn a_marked_row_stays_known_until_a_fetch_begun_after_the_mark_was_handled() {
    let mut window = filled(&[(1, "t", "a")]);
    let id = next(&mut window).expect("ready");
    let stale = window.begin_fetch();
    window.acked(id);
    window.marked(&[id]);
    assert_eq!(window.take(row(1, "t", "a")), Taken::Known, "the fetch that began before the mark lists it");
    window.end_fetch(stale);
    assert!(window.knows(1), "that fetch proves nothing");
    let fresh = window.begin_fetch();
    assert_eq!(window.take(row(1, "t", "a")), Taken::Known);
    window.end_fetch(fresh);
    assert!(!window.knows(1));
}

#[test]
fn a_row_given_up_takes_the_later_rows_of_its_key_out_of_memory() {
    let mut window = filled(&[(1, "t", "a"), (2, "t", "a"), (3, "t", "b")]);
    let id = next(&mut window).expect("ready");
    assert!(window.suspect(id).is_some());
    assert!(!window.knows(1) && !window.knows(2) && window.knows(3));
    window.take(row(1, "t", "a"));
    assert!(window.next(usize::MAX).is_some_and(|(row, alone)| row.id.seq == 1 && alone), "it goes alone");
    assert!(window.next(usize::MAX).is_some_and(|(row, alone)| row.id.seq == 3 && !alone));
}

#[test]
fn a_buried_key_takes_no_rows_until_a_later_fetch_saw_it_blocked() {
    let mut window = filled(&[(1, "t", "a"), (2, "t", "a")]);
    let id = next(&mut window).expect("ready");
    let flight = window.suspect(id).expect("in flight");
    window.block(&flight.key);
    assert_eq!(window.take(row(2, "t", "a")), Taken::Blocked);
    let stale = window.begin_fetch();
    window.buried(id, &flight.key, true);
    window.end_fetch(stale);
    assert_eq!(window.take(row(2, "t", "a")), Taken::Blocked, "that fetch began before the commit");
    let fresh = window.begin_fetch();
    window.end_fetch(fresh);
    assert_eq!(window.take(row(2, "t", "a")), Taken::New, "the statement itself now says what is blocked");
}

#[test]
fn a_topic_at_its_limit_does_not_stop_the_others() {
    let mut window = filled(&[(1, "t", "a"), (2, "t", "b"), (3, "u", "c")]);
    assert_eq!(window.next(1).expect("ready").0.id.seq, 1);
    assert_eq!(window.next(1).expect("ready").0.id.seq, 3);
    assert!(window.next(1).is_none());
    assert_eq!(window.heavy_topics(2), [Arc::from("t")]);
    window.drop_topic("t");
    assert_eq!(window.held().rows, 2, "rows in flight stay");
}

#[test]
fn what_was_in_flight_is_forgotten_with_its_producer() {
    let mut window = filled(&[(1, "t", "a"), (2, "t", "a"), (3, "t", "b")]);
    let (first, second) = (next(&mut window).expect("ready"), next(&mut window).expect("ready"));
    window.acked(second);
    window.drop_unacked();
    assert!(window.acked(first).is_none());
    assert_eq!((window.held().rows, window.in_flight().bytes), (0, 0));
    assert!(window.knows(3), "an acknowledged row stays until it is marked");
}

/// A database with writers that keep the lock discipline: of one key only one transaction is open at a time.
#[derive(Default)]
struct Model {
    seq: i64,
    open: BTreeMap<u8, i64>,
    committed: BTreeMap<i64, u8>,
    sent: HashSet<i64>,
}

struct Fetch {
    number: u64,
    pages: Vec<(Page, Listed)>,
}

impl Model {
    fn row(seq: i64, key: u8) -> Row {
        row(seq, "t", &format!("k{key}"))
    }

    fn list(&self, number: u64, pages: Vec<Page>) -> Fetch {
        let listed = |page: &Page| {
            let unsent = || {
                let unsent = self.committed.iter().filter(|(seq, _)| !self.sent.contains(seq));
                unsent.map(|(s, k)| Self::row(*s, *k)).filter(|r| r.bucket == page.bucket)
            };
            let above = unsent().filter(|r| r.id.seq > page.after).take(page.take as usize);
            let behind = unsent().map(|r| r.id.seq).filter(|seq| *seq <= page.after);
            Listed { rows: above.map(|r| (r, false)).collect(), behind: behind.collect() }
        };
        Fetch { number, pages: pages.into_iter().map(|page| (page, listed(&page))).collect() }
    }
}

fn handle(window: &mut Window, cursors: &mut Cursors, fetch: Fetch) {
    let mut catch = Catch::default();
    for (page, listed) in fetch.pages {
        take(window, cursors, &page, listed, 16, &mut catch);
    }
    window.end_fetch(fetch.number);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the schedule of writers, fetches, acknowledgements, marks and failures: first occurrences are in
    /// order per key, nothing is lost, and without a failure nothing is sent twice.
    #[test]
    fn random_schedules_keep_order_and_lose_nothing(steps in prop::collection::vec((0u8..9, any::<u8>()), 1..400)) {
        let (mut model, mut window, mut cursors) = (Model::default(), Window::default(), Cursors::default());
        let mut fetch: Option<Fetch> = None;
        let mut flying: Vec<RowId> = Vec::new();
        let mut acked: Vec<RowId> = Vec::new();
        let mut first_seen: Vec<i64> = Vec::new();
        let mut sent: HashMap<i64, usize> = HashMap::new();
        let mut given_up: HashSet<i64> = HashSet::new();
        // After the random part: commit all, then fetch, send, acknowledge and mark until nothing is left.
        let tail = std::iter::repeat_n([(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)], 400).flatten();
        for (step, choice) in steps.into_iter().chain(tail) {
            match step {
                0 => if model.open.len() < 6 {
                    let key = choice % 8;
                    if let std::collections::btree_map::Entry::Vacant(open) = model.open.entry(key) {
                        model.seq += 1;
                        open.insert(model.seq);
                    }
                },
                1 => {
                    let key = model.open.keys().nth(choice as usize % model.open.len().max(1)).copied();
                    if let Some((key, seq)) = key.and_then(|k| model.open.remove_entry(&k)) {
                        model.committed.insert(seq, key);
                    }
                }
                2 => if fetch.is_none() {
                    if choice % 16 == 0 { cursors.rescan(); }
                    let pages = cursors.plan(&[0, 1], 6);
                    fetch = Some(model.list(window.begin_fetch(), pages));
                },
                3 => if let Some(listed) = fetch.take() { handle(&mut window, &mut cursors, listed) },
                4 => while let Some((row, _)) = window.next(usize::MAX) {
                    let seq = row.id.seq;
                    if *sent.entry(seq).and_modify(|n| *n += 1).or_insert(1) == 1 { first_seen.push(seq); }
                    flying.push(row.id);
                },
                5 => while !flying.is_empty() {
                    let id = flying.remove(choice as usize % flying.len());
                    window.acked(id);
                    acked.push(id);
                    if choice % 3 == 0 { break; }
                },
                6 => {
                    model.sent.extend(acked.iter().map(|id| id.seq));
                    window.marked(&acked);
                    acked.clear();
                }
                7 => if !flying.is_empty() {
                    let id = flying.remove(choice as usize % flying.len());
                    given_up.insert(id.seq);
                    if let Some(flight) = window.abandon(id) { cursors.rewind(flight.bucket) }
                },
                _ => {
                    window.drop_bucket(i16::from(choice % 2));
                    cursors.rewind(i16::from(choice % 2));
                }
            }
        }
        let mut last: HashMap<u8, i64> = HashMap::new();
        for seq in &first_seen {
            let before = last.insert(model.committed[seq], *seq).unwrap_or(0);
            prop_assert!(before < *seq, "key {}: {seq} after {before}", model.committed[seq]);
        }
        prop_assert_eq!(first_seen.len(), model.committed.len(), "all rows were sent");
        for (seq, times) in sent {
            prop_assert!(times == 1 || given_up.contains(&seq), "row {seq} was sent {times} times");
        }
        prop_assert_eq!((window.held().rows, window.held().bytes), (0, 0));
    }
}
