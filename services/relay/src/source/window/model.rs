//! Window, cursors and floors against a model of the database, under random schedules.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use proptest::prelude::*;

use super::super::cursor::{Cursors, Page, Raise};
use super::super::intake::{Catch, take};
use super::super::row::{Row, RowId};
use super::super::store::Listed;
use super::Window;
use super::tests::row;

/// A database with writers that keep the lock discipline: of one key only one transaction is open at a time.
#[derive(Default)]
struct Model {
    seq: i64,
    open: BTreeMap<u8, i64>,
    committed: BTreeMap<i64, u8>,
    sent: HashSet<i64>,
    dead: BTreeMap<i64, u8>,
    held: HashSet<i64>,
    eras: [i64; 2],
    paused: bool,
}

struct Fetch {
    number: u64,
    pages: Vec<(Page, Listed)>,
}

/// Keys 6 and 7 are of a topic that is paused now and then.
fn is_pausable(key: u8) -> bool {
    key >= 6
}

impl Model {
    fn row(seq: i64, key: u8) -> Row {
        row(seq, if is_pausable(key) { "u" } else { "t" }, &format!("k{key}"))
    }

    fn unsent(&self, bucket: i16) -> impl Iterator<Item = (i64, u8)> {
        let unsent = self.committed.iter().filter(move |(seq, key)| {
            let gone = self.sent.contains(seq) || self.dead.contains_key(seq) || self.held.contains(seq);
            !gone && Self::row(**seq, **key).bucket == bucket
        });
        unsent.map(|(seq, key)| (*seq, *key))
    }

    fn is_wanted(&self, key: u8) -> bool {
        !(self.paused && is_pausable(key))
    }

    fn blocked(&self, seq: i64, key: u8) -> bool {
        self.dead.iter().any(|(dead, k)| *k == key && *dead < seq)
    }

    /// What fetch.sql answers.
    fn list(&self, number: u64, pages: Vec<Page>) -> Fetch {
        let over = if self.paused { 3 } else { 0 };
        let listed = |page: &Page| {
            let above = self.unsent(page.bucket).filter(|(seq, _)| *seq > page.after);
            let read: Vec<_> = above.take(page.take.max(over) as usize).collect();
            let mut listed = Listed::default();
            for (place, (seq, key)) in read.iter().enumerate() {
                if self.is_wanted(*key) && (listed.rows.len() as i64) < page.take {
                    listed.rows.push((Self::row(*seq, *key), self.blocked(*seq, *key)));
                } else if self.is_wanted(*key) {
                    break;
                } else if place + 1 == read.len() {
                    listed.passed = Some(*seq);
                }
            }
            let behind = self.unsent(page.bucket).filter(|(_, key)| self.is_wanted(*key)).map(|(seq, _)| seq);
            listed.behind = behind.filter(|seq| *seq > page.floor && *seq <= page.after).collect();
            let era = self.eras[page.bucket as usize];
            listed.era = (page.era != Some(era)).then_some(era);
            listed
        };
        Fetch { number, pages: pages.into_iter().map(|page| (page, listed(&page))).collect() }
    }

    fn raises(&self) -> Vec<Raise> {
        let raise = |bucket: i16| {
            let lowest = self.unsent(bucket).find(|(_, key)| self.is_wanted(*key));
            Raise { bucket, era: self.eras[bucket as usize], most: lowest.map(|(seq, _)| seq - 1) }
        };
        vec![raise(0), raise(1)]
    }

    /// A row that somebody wants and that lies below a floor, now or after a commit.
    fn below_floor(&self, cursors: &Cursors) -> Option<i64> {
        let floors = cursors.floors([0, 1]).into_iter();
        floors.filter(|(bucket, _)| cursors.is_era(*bucket, self.eras[*bucket as usize])).find_map(
            |(bucket, floor)| {
                let open = self.open.iter().map(|(key, seq)| (*seq, *key));
                let open = open.filter(|(seq, key)| Self::row(*seq, *key).bucket == bucket);
                let wanted = self.unsent(bucket).chain(open).filter(|(_, key)| self.is_wanted(*key));
                wanted.map(|(seq, _)| seq).find(|seq| *seq <= floor)
            },
        )
    }
}

/// The relay's side.
#[derive(Default)]
struct Relay {
    window: Window,
    cursors: Cursors,
    fetch: Option<Fetch>,
    flying: Vec<RowId>,
    acked: Vec<RowId>,
    ceiling: Option<(i64, BTreeSet<i64>, u64)>,
    raises: Option<(i64, Vec<Raise>, u64)>,
    first_seen: Vec<i64>,
    sent: HashMap<i64, usize>,
    given_up: HashSet<i64>,
}

impl Relay {
    fn handle(&mut self, model: &mut Model) {
        let Some(fetch) = self.fetch.take() else { return };
        let mut catch = Catch::default();
        for (page, listed) in fetch.pages {
            take(&mut self.window, &mut self.cursors, &page, listed, 16, &mut catch);
        }
        self.window.end_fetch(fetch.number);
        // What `Store::hold` does: only behind a dead row that is still there.
        for id in catch.behind_dead {
            let key = model.committed[&id.seq];
            if model.blocked(id.seq, key)
                && !model.sent.contains(&id.seq)
                && !model.dead.contains_key(&id.seq)
            {
                model.held.insert(id.seq);
            }
        }
    }

    fn send(&mut self) {
        while let Some((row, _)) = self.window.next(usize::MAX) {
            let seq = row.id.seq;
            if *self.sent.entry(seq).and_modify(|n| *n += 1).or_insert(1) == 1 {
                self.first_seen.push(seq);
            }
            self.flying.push(row.id);
        }
    }

    /// A row that was never out is refused for good.
    fn die(&mut self, model: &mut Model) {
        let Some((row, _)) = self.window.next(usize::MAX) else { return };
        let id = row.id;
        if self.sent.contains_key(&id.seq) {
            self.given_up.insert(id.seq);
            self.window.abandon(id);
        } else if let Some(flight) = self.window.suspect(id) {
            self.window.block(&flight.key);
            model.dead.insert(id.seq, model.committed[&id.seq]);
            self.window.buried(id, &flight.key, true);
        }
        self.cursors.rewind(row.bucket);
    }

    fn acknowledge(&mut self, choice: u8) {
        while !self.flying.is_empty() {
            let id = self.flying.remove(choice as usize % self.flying.len());
            self.window.acked(id);
            self.acked.push(id);
            if choice.is_multiple_of(3) {
                break;
            }
        }
    }

    fn mark(&mut self, model: &mut Model) {
        model.sent.extend(self.acked.iter().map(|id| id.seq));
        self.window.marked(&self.acked);
        self.acked.clear();
    }

    fn give_up(&mut self, choice: u8) {
        if self.flying.is_empty() {
            return;
        }
        let id = self.flying.remove(choice as usize % self.flying.len());
        self.given_up.insert(id.seq);
        if let Some(flight) = self.window.abandon(id) {
            self.cursors.rewind(flight.bucket);
        }
    }

    fn floor(&mut self, model: &Model) {
        if let Some((ceiling, raises, forgotten)) = self.raises.take() {
            if forgotten == self.cursors.forgotten() {
                self.cursors.raise(ceiling, &raises);
            }
        } else if let Some((ceiling, open, forgotten)) = self.ceiling.take() {
            if model.open.values().any(|seq| open.contains(seq)) {
                self.ceiling = Some((ceiling, open, forgotten));
            } else {
                self.raises = Some((ceiling, model.raises(), forgotten));
            }
        } else {
            self.ceiling =
                Some((model.seq, model.open.values().copied().collect(), self.cursors.forgotten()));
        }
    }
}

fn step(model: &mut Model, relay: &mut Relay, step: u8, choice: u8) {
    match step {
        0 => {
            let key = choice % 8;
            if model.open.len() < 6 && !model.open.contains_key(&key) {
                model.seq += 1;
                model.open.insert(key, model.seq);
            }
        }
        1 => {
            let key = model.open.keys().nth(choice as usize % model.open.len().max(1)).copied();
            if let Some((key, seq)) = key.and_then(|key| model.open.remove_entry(&key)) {
                model.committed.insert(seq, key);
            }
        }
        2 => {
            if relay.fetch.is_none() {
                if choice.is_multiple_of(16) {
                    relay.cursors.rescan();
                }
                let pages = relay.cursors.plan(&[(0, 16), (1, 16)], 6);
                relay.fetch = Some(model.list(relay.window.begin_fetch(), pages));
            }
        }
        3 => relay.handle(model),
        4 => relay.send(),
        5 => relay.acknowledge(choice),
        6 => relay.mark(model),
        7 => relay.floor(model),
        8 => relay.give_up(choice),
        9 => {
            relay.window.drop_bucket(i16::from(choice % 2));
            relay.cursors.rewind(i16::from(choice % 2));
        }
        10 => relay.die(model),
        11 => {
            // An operator: `dead retry`.
            if let Some((seq, key)) = model.dead.pop_first() {
                let committed = &model.committed;
                model.held.retain(|held| committed[held] != key);
                model.eras[Model::row(seq, key).bucket as usize] += 1;
            }
        }
        _ => {
            model.paused = !model.paused;
            if model.paused {
                relay.window.drop_topic("u");
                relay.cursors.rewind_all();
            } else {
                relay.cursors.forget_all();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the schedule of writers, fetches, acknowledgements, marks, floors, failures, dead rows, operators and
    /// paused topics: first occurrences are in order per key, nothing is lost, no row comes to lie below a floor, and
    /// without a failure nothing is sent twice.
    #[test]
    fn random_schedules_keep_order_and_lose_nothing(steps in prop::collection::vec((0u8..13, any::<u8>()), 1..500)) {
        let (mut model, mut relay) = (Model::default(), Relay::default());
        for (number, choice) in steps {
            // Failures, operators and pauses are rarer than work.
            let number = if number > 7 && choice % 4 > 0 { choice % 8 } else { number };
            step(&mut model, &mut relay, number, choice);
            prop_assert_eq!(model.below_floor(&relay.cursors), None, "below a floor");
        }
        if model.paused {
            step(&mut model, &mut relay, 12, 0);
        }
        while !model.dead.is_empty() {
            step(&mut model, &mut relay, 11, 0);
        }
        // All commit; then fetch, send, acknowledge, mark and raise floors until nothing is left.
        for _ in 0..400 {
            for number in 1..8 {
                step(&mut model, &mut relay, number, 1);
            }
            prop_assert_eq!(model.below_floor(&relay.cursors), None, "below a floor");
        }
        let mut last: HashMap<u8, i64> = HashMap::new();
        for seq in &relay.first_seen {
            let before = last.insert(model.committed[seq], *seq).unwrap_or(0);
            prop_assert!(before < *seq, "key {}: {seq} after {before}", model.committed[seq]);
        }
        prop_assert_eq!(relay.first_seen.len(), model.committed.len(), "all rows were sent");
        for (seq, times) in relay.sent {
            prop_assert!(times == 1 || relay.given_up.contains(&seq), "row {seq} was sent {times} times");
        }
        prop_assert_eq!((relay.window.held().rows, relay.window.held().bytes), (0, 0));
        prop_assert!(relay.cursors.floors([0, 1]).iter().all(|(_, floor)| *floor > 0 || model.seq == 0), "floors rise");
    }
}
