//! The window against examples.

use std::sync::Arc;

use uuid::Uuid;

use super::super::row::{Key, Row, RowId};
use super::{Taken, Window};

pub(super) fn row(seq: i64, topic: &str, key: &str) -> Row {
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
        retried: false,
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

fn knows(window: &Window, seq: i64) -> bool {
    window.knows(0, seq) || window.knows(1, seq)
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
    assert!(knows(&window, 1), "that fetch proves nothing");
    let fresh = window.begin_fetch();
    assert_eq!(window.take(row(1, "t", "a")), Taken::Known);
    window.end_fetch(fresh);
    assert!(!knows(&window, 1));
}

#[test]
fn a_row_given_up_takes_the_later_rows_of_its_key_out_of_memory() {
    let mut window = filled(&[(1, "t", "a"), (2, "t", "a"), (3, "t", "b")]);
    let id = next(&mut window).expect("ready");
    assert!(window.suspect(id).is_some());
    assert!(!knows(&window, 1) && !knows(&window, 2) && knows(&window, 3));
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
    assert!(knows(&window, 3), "an acknowledged row stays until it is marked");
}
