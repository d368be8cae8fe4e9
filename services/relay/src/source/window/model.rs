//! Window, cursors and floors against a model of the database, under random schedules.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::cursor::{Cursors, Page, Raise};
use super::super::intake::{Catch, take};
use super::super::row::{Row, RowId};
use super::super::store::Listed;
use super::tests::row;
use super::{Load, Window};

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
    /// In which buckets the pausable topic is left out: in both while it is paused, in one whose partition stands.
    still: [bool; 2],
}

struct Fetch {
    number: u64,
    pages: Vec<(Page, Listed)>,
}

/// Keys 6 and 7 are of a topic that stands still now and then.
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
        !(is_pausable(key) && self.still[Self::row(0, key).bucket as usize])
    }

    fn blocked(&self, seq: i64, key: u8) -> bool {
        self.dead.iter().any(|(dead, k)| *k == key && *dead < seq)
    }

    /// What fetch.sql answers.
    fn list(&self, number: u64, pages: Vec<Page>) -> Fetch {
        let over = if self.still == [false; 2] { 0 } else { 3 };
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
        self.cursors.back_to(row.bucket, id.seq);
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
            self.cursors.back_to(flight.bucket, id.seq);
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
                let window = &relay.window;
                let known = |bucket, after| window.known_above(bucket, after);
                let pages = relay.cursors.plan(&[(0, 16), (1, 16)], 6, i64::MAX / 2, known);
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
        12 => {
            let is_paused = model.still == [true; 2];
            model.still = [!is_paused; 2];
            if is_paused {
                relay.cursors.forget_all();
            } else {
                relay.window.drop_topic("u");
                relay.cursors.outdate();
            }
        }
        _ => {
            // A partition stands, or goes on: its rows in memory stay there. Judged where a fetch begins.
            let bucket = choice % 2;
            if relay.fetch.is_none() {
                let still = &mut model.still[usize::from(bucket)];
                *still = !*still;
                if !*still {
                    relay.cursors.forget(i16::from(bucket));
                }
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
    fn random_schedules_keep_order_and_lose_nothing(steps in prop::collection::vec((0u8..14, any::<u8>()), 1..500)) {
        let (mut model, mut relay) = (Model::default(), Relay::default());
        for (number, choice) in steps {
            // Failures, operators and pauses are rarer than work.
            let number = if number > 7 && choice % 4 > 0 { choice % 8 } else { number };
            step(&mut model, &mut relay, number, choice);
            prop_assert_eq!(model.below_floor(&relay.cursors), None, "below a floor");
        }
        model.still = [false; 2];
        relay.fetch = None;
        relay.cursors.forget_all();
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

/// A bucket whose topic `d` is dead: `dead` rows of it, of as many keys, then `alive` rows of topic `t`.
struct Stalled {
    relay: Relay,
    unsent: BTreeMap<i64, bool>,
    limit: Load,
    clock: Instant,
}

impl Stalled {
    fn new(dead: i64, alive: i64, limit: usize) -> Self {
        let unsent = (1..=dead + alive).map(|seq| (seq, seq <= dead)).collect();
        let limit = Load { rows: limit, bytes: usize::MAX / 2 };
        Self { relay: Relay::default(), unsent, limit, clock: Instant::now() }
    }

    /// One fetch; what came of `t` is acknowledged and marked at once, nothing of `d` ever is. How many rows left.
    fn fetch(&mut self, patience: Duration) -> usize {
        let Self { relay, unsent, limit, clock } = self;
        relay.window.tick(*clock);
        let room = relay.window.room(0, *limit, patience);
        let Some(rows) = room.rows else { return 0 };
        let window = &relay.window;
        let known = |bucket, after| window.known_above(bucket, after);
        let page = relay.cursors.plan(&[(0, rows as i64)], 500, i64::MAX / 2, known)[0];
        let (number, leaves_out) = (relay.window.begin_fetch(), !room.standing.is_empty());
        let mut listed = Listed::default();
        let read = page.take.max(if leaves_out { 3 } else { 0 });
        for (seq, dead) in unsent.range(page.after + 1..).take(read as usize) {
            if *dead && leaves_out {
                listed.passed = Some(*seq);
            } else if (listed.rows.len() as i64) < page.take {
                listed.passed = None;
                listed.rows.push((Self::row(*seq, *dead), false));
            }
        }
        let mut catch = Catch::default();
        take(&mut relay.window, &mut relay.cursors, &page, listed, 500, &mut catch);
        relay.window.end_fetch(number);
        let mut sent = 0;
        while let Some((row, _)) = relay.window.next(usize::MAX) {
            if &*row.key.topic == "t" {
                relay.window.acked(row.id);
                relay.window.marked(&[row.id]);
                unsent.remove(&row.id.seq);
                sent += 1;
            }
        }
        sent
    }

    fn row(seq: i64, dead: bool) -> Row {
        Row { bucket: 0, ..row(seq, if dead { "d" } else { "t" }, &format!("k{seq}")) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Progress is no race: however little room is left beside what is in memory, and though the cursor goes back to
    /// the start of the bucket before each fetch, every fetch brings rows that can leave.
    #[test]
    fn what_is_in_memory_never_keeps_a_fetch_from_new_rows(limit in 2usize..80, free in 1usize..8, alive in 1i64..100) {
        let dead = limit.saturating_sub(free).max(1) as i64;
        let mut stalled = Stalled::new(dead, alive, limit);
        let mut fetches = 0;
        while stalled.unsent.len() as i64 > dead {
            stalled.relay.cursors.rewind(0);
            // The dead rows come in by pages too; a page has at least `COLD` rows, or all the room that there is.
            let brought = stalled.fetch(Duration::MAX) > 0 || stalled.relay.window.held().rows < dead as usize;
            fetches += 1;
            prop_assert!(brought || fetches <= dead, "a fetch brought nothing: {fetches}");
            prop_assert!(fetches <= dead + alive, "{} left", stalled.unsent.len());
        }
    }

    /// A backlog that stands is passed however slowly it is read: every fetch takes longer than all patience.
    #[test]
    fn a_standing_backlog_is_passed_at_any_pace(limit in 2usize..20, dead in 1i64..200, alive in 1i64..20) {
        let patience = Duration::from_secs(1);
        let mut stalled = Stalled::new(dead, alive, limit);
        for _ in 0..dead + alive + 2 {
            stalled.clock += 2 * patience;
            stalled.fetch(patience);
        }
        prop_assert_eq!(stalled.unsent.len() as i64, dead, "only the dead ones are left");
    }
}

#[test]
fn a_share_that_stood_is_read_again_when_half_of_it_is_free() {
    let (limit, patience) = (Load { rows: 4, bytes: usize::MAX / 2 }, Duration::from_secs(1));
    let (mut window, start) = (Window::default(), Instant::now());
    window.tick(start);
    for seq in 1..=4 {
        window.take(Stalled::row(seq, true));
    }
    let ids: Vec<RowId> = std::iter::from_fn(|| window.next(usize::MAX)).map(|(row, _)| row.id).collect();
    assert_eq!(window.room(0, limit, patience).rows, None, "full, and nobody knows yet whether it moves");
    window.tick(start + patience);
    let stands = |window: &mut Window| window.room(0, limit, patience).standing.len() == 1;
    assert!(stands(&mut window));
    window.acked(ids[0]);
    assert!(stands(&mut window), "one row now and then is no going on");
    window.acked(ids[1]);
    assert!(!stands(&mut window));
    assert_eq!(window.room(0, limit, patience).rows, Some(2));
}
