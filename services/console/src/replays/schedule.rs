//! Which record may be sent next: per key one at a time and in order, and after a failure none of that key any more.

use std::collections::{BTreeSet, HashMap, VecDeque};

/// Place of a letter in its run.
pub(super) type Position = i32;

/// Marks a key; letters without key have each their own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Topic and digest.
    Of(String, String),
    None(Position),
}

/// What is still to be sent.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Per key, in order; the first is in `ready` or under way.
    queues: HashMap<Key, VecDeque<Position>>,
    keys: HashMap<Position, Key>,
    ready: BTreeSet<Position>,
    under_way: HashMap<Key, Position>,
    /// Keys that failed before this process took the run over, with the first letter that did.
    failed: HashMap<Key, Position>,
    left: usize,
}

impl Schedule {
    /// Adds a letter that was not sent yet; in the order of positions.
    pub(super) fn add(&mut self, position: Position, key: Key) {
        let queue = self.queues.entry(key.clone()).or_default();
        queue.push_back(position);
        if queue.len() == 1 && !self.under_way.contains_key(&key) {
            self.ready.insert(position);
        }
        self.keys.insert(position, key);
        self.left += 1;
    }

    /// Adds a letter that was sent before this process took the run over. Before any [`Self::add`] of its key.
    pub(super) fn add_under_way(&mut self, position: Position, key: Key) {
        self.under_way.insert(key.clone(), position);
        self.keys.insert(position, key);
    }

    /// A letter that failed before this process took the run over: the later ones of its key are not sent.
    pub(super) fn add_failed(&mut self, position: Position, key: Key) {
        let first = self.failed.entry(key).or_insert(position);
        *first = position.min(*first);
    }

    /// Letters behind one of their key that has failed, to be given up.
    pub(super) fn take_stopped(&mut self) -> Vec<Position> {
        let failed = std::mem::take(&mut self.failed);
        failed.iter().flat_map(|(key, position)| self.give_up(key, *position)).collect()
    }

    /// At most `count` letters that may be sent now; they are under way from here on.
    pub(super) fn next(&mut self, count: usize) -> Vec<Position> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(position) = self.ready.pop_first()
        {
            let key = &self.keys[&position];
            if let Some(queue) = self.queues.get_mut(key) {
                queue.pop_front();
                if queue.is_empty() {
                    self.queues.remove(key);
                }
            }
            self.under_way.insert(key.clone(), position);
            self.left -= 1;
            taken.push(position);
        }
        taken
    }

    /// The letter has been handled: the next of its key may go.
    pub(super) fn done(&mut self, position: Position) {
        let Some(key) = self.keys.remove(&position) else { return };
        self.under_way.remove(&key);
        if let Some(next) = self.queues.get(&key).and_then(|queue| queue.front()) {
            self.ready.insert(*next);
        }
    }

    /// The letter has failed. Gives the letters of its key, which are not to be sent.
    pub(super) fn failed(&mut self, position: Position) -> Vec<Position> {
        let Some(key) = self.keys.remove(&position) else { return Vec::new() };
        self.under_way.remove(&key);
        self.give_up(&key, position)
    }

    /// Letters that were not sent and may still be.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Takes what is queued behind `position` out of its key.
    fn give_up(&mut self, key: &Key, position: Position) -> Vec<Position> {
        let Some(queue) = self.queues.get_mut(key) else { return Vec::new() };
        let later: Vec<_> = queue.split_off(queue.partition_point(|queued| *queued < position)).into();
        if queue.is_empty() {
            self.queues.remove(key);
        }
        for position in &later {
            self.keys.remove(position);
            self.ready.remove(position);
        }
        self.left -= later.len();
        later
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> Key {
        Key::Of("t".into(), name.into())
    }

    fn schedule(keys: &[Key]) -> Schedule {
        let mut schedule = Schedule::default();
        for (position, key) in (0..).zip(keys) {
            schedule.add(position, key.clone());
        }
        schedule
    }

    #[test]
    fn a_key_waits_for_its_earlier_letter_and_others_do_not() {
        let mut schedule = schedule(&[key("a"), key("a"), key("b"), Key::None(3), Key::None(4)]);
        assert_eq!(schedule.next(10), [0, 2, 3, 4]);
        assert_eq!((schedule.next(10), schedule.left()), (vec![], 1));
        schedule.done(0);
        assert_eq!((schedule.next(10), schedule.left()), (vec![1], 0));
    }

    #[test]
    fn a_failure_stops_its_key_alone() {
        let mut schedule = schedule(&[key("a"), key("b"), key("a"), key("a"), key("b")]);
        assert_eq!(schedule.next(1), [0]);
        assert_eq!(schedule.failed(0), [2, 3]);
        assert_eq!((schedule.next(5), schedule.left()), (vec![1], 1));
        schedule.done(1);
        assert_eq!(schedule.next(5), [4]);
    }

    #[test]
    fn a_successor_goes_on_where_the_run_stood() {
        let mut schedule = Schedule::default();
        schedule.add_under_way(0, key("a"));
        for (position, name) in [(1, "a"), (2, "b"), (4, "b"), (6, "b"), (7, "c")] {
            schedule.add(position, key(name));
        }
        // Letters that failed or were refused: what lies before them is not theirs to stop.
        schedule.add_failed(5, key("b"));
        schedule.add_failed(3, key("b"));
        assert_eq!(schedule.take_stopped(), [4, 6]);
        assert_eq!((schedule.next(5), schedule.left()), (vec![2, 7], 1));
        schedule.done(0);
        assert_eq!(schedule.next(5), [1]);
    }

    proptest! {
        /// Whatever succeeds, fails or comes late: within a key in order, one at a time, none after a failure, none lost.
        #[test]
        fn order_holds(keys in prop::collection::vec(0..5_u8, 1..60), plan in prop::collection::vec((0..4_usize, any::<bool>()), 200)) {
            let names: Vec<Key> = keys.iter().map(|k| key(&k.to_string())).collect();
            let mut schedule = schedule(&names);
            let (mut open, mut sent, mut stopped): (Vec<i32>, Vec<i32>, Vec<i32>) = Default::default();
            let mut dead = std::collections::HashSet::new();
            for (count, good) in plan.into_iter().cycle().take(1000) {
                for position in schedule.next(count) {
                    let name = keys[position as usize];
                    prop_assert!(!dead.contains(&name));
                    prop_assert!(open.iter().all(|other| keys[*other as usize] != name));
                    prop_assert!(sent.iter().all(|other| keys[*other as usize] != name || *other < position));
                    open.push(position);
                    sent.push(position);
                }
                if let Some(position) = open.pop() {
                    if good {
                        schedule.done(position);
                    } else {
                        dead.insert(keys[position as usize]);
                        stopped.extend(schedule.failed(position));
                    }
                }
                if schedule.left() == 0 && open.is_empty() {
                    break;
                }
            }
            if schedule.left() == 0 {
                prop_assert_eq!(sent.len() + stopped.len(), keys.len());
            }
        }
    }
}
