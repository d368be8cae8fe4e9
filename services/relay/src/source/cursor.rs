//! How far each bucket was read, from where it is read again, and how much of it the next fetch asks for. No I/O.
//!
//! A cursor is an optimisation of one process, never a "last id": every fetch also looks behind it, and it goes back
//! to what is found there, and to rows that left memory unsent. It never goes back because time has passed: a bucket
//! whose rows are read more slowly than that would be read for ever from its start. The floor is proven: see
//! [`Cursors::raise`].

use std::collections::BTreeMap;

use super::window::Load;

/// Rows that a bucket is asked for while nothing is known of it.
const COLD: i64 = 8;

/// What one fetch reads of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    /// The bucket.
    pub(crate) bucket: i16,
    /// Rows above this `seq`.
    pub(crate) after: i64,
    /// At most so many, rows in memory among them.
    pub(crate) take: i64,
    /// At most so many of them may be new.
    pub(crate) room: i64,
    /// Bytes of payloads; the row that crosses it still comes.
    pub(crate) bytes: i64,
    /// No unsent row lies up to here.
    pub(crate) floor: i64,
    /// In this era of the bucket; `None`: not known yet.
    pub(crate) era: Option<i64>,
    turn: u64,
}

/// A floor to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Raise {
    /// The bucket.
    pub(crate) bucket: i16,
    /// Era of the snapshot in which it was found.
    pub(crate) era: i64,
    /// The lowest unsent row is above it; `None`: there is none.
    pub(crate) most: Option<i64>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    buckets: BTreeMap<i16, Cursor>,
    /// Which bucket comes first in the next plan.
    first: i16,
    /// How often a floor was given up.
    forgotten: u64,
}

#[derive(Debug, Clone, Copy)]
struct Cursor {
    after: i64,
    floor: i64,
    era: Option<i64>,
    want: i64,
    turn: u64,
}

const FRESH: Cursor = Cursor { after: 0, floor: 0, era: None, want: COLD, turn: 0 };

impl Cursors {
    /// Pages for the given buckets, each with the new rows that it has room for; about `rows` new ones together, and
    /// `bytes` of new payloads in each. `known` tells what memory has of a bucket above a `seq`.
    pub(crate) fn plan(
        &mut self,
        buckets: &[(i16, i64)],
        rows: i64,
        bytes: i64,
        known: impl Fn(i16, i64) -> Load,
    ) -> Vec<Page> {
        let mut wanted = 0;
        for (bucket, room) in buckets {
            wanted += self.buckets.entry(*bucket).or_insert(FRESH).want.min(*room);
        }
        let pages = buckets.iter().filter_map(|(bucket, room)| {
            let Cursor { after, floor, era, turn, want } = *self.buckets.get(bucket)?;
            let want = want.min(*room);
            let room = if wanted > rows { (want * rows / wanted).max(1) } else { want };
            // Rule: what is in memory takes no room of a page. Else a page with room for a few rows, begun where
            // many are known, would bring nothing new, and a bucket whose cursor goes back again and again would
            // never come to the rows behind them.
            let known = known(*bucket, after);
            let (take, bytes) = (room + known.rows as i64, bytes + known.bytes as i64);
            Some(Page { bucket: *bucket, after, take, room, bytes, floor, era, turn })
        });
        let mut pages: Vec<Page> = pages.collect();
        // Another bucket first each time: the database answers in this order.
        let turn = pages.iter().position(|page| page.bucket >= self.first).unwrap_or(0);
        pages.rotate_left(turn);
        self.first = pages.get(1).map_or(0, |page| page.bucket);
        pages
    }

    /// Whether the page's cursor is still where it was when the fetch began. If not, its rows must not be used.
    pub(crate) fn is_current(&self, page: &Page) -> bool {
        self.buckets.get(&page.bucket).is_some_and(|cursor| cursor.turn == page.turn)
    }

    /// The fetch saw another era than the page's. If it read the bucket from its very start, its rows are good;
    /// else (`false`) it may have missed rows below the floor, and everything is read again.
    pub(crate) fn enter(&mut self, page: &Page, era: i64) -> bool {
        let whole = page.after == 0 && page.floor == 0;
        if !whole {
            self.forget(page.bucket);
        }
        if let Some(cursor) = self.buckets.get_mut(&page.bucket) {
            // A floor that was raised while the fetch ran belongs to the era before.
            (cursor.era, cursor.floor) = (Some(era), 0);
        }
        whole
    }

    /// A page was handled: `last` is its last `seq`; `full` says that more may follow. `most` is the largest page.
    pub(crate) fn advance(&mut self, page: &Page, last: Option<i64>, full: bool, most: i64) {
        let Some(cursor) = self.buckets.get_mut(&page.bucket) else { return };
        cursor.after = last.unwrap_or(cursor.after).max(cursor.floor);
        cursor.want = if full { (page.room * 4).clamp(COLD, most.max(COLD)) } else { COLD };
    }

    /// Rows of the bucket from `seq` on left memory unsent, or lie there and were never in it.
    pub(crate) fn back_to(&mut self, bucket: i16, seq: i64) {
        // Rule: a fetch that began before must not be used for this bucket. It may hold a later row of a key whose
        // earlier row has just left memory, and would publish it first.
        let cursor = self.buckets.entry(bucket).or_insert(FRESH);
        cursor.after = cursor.after.min(seq - 1).max(cursor.floor);
        cursor.turn += 1;
    }

    /// Rows of the bucket left memory unsent, nobody knows which, or its lease changed.
    pub(crate) fn rewind(&mut self, bucket: i16) {
        self.back_to(bucket, 0);
    }

    /// [`Cursors::rewind`] of all buckets.
    pub(crate) fn rewind_all(&mut self) {
        for cursor in self.buckets.values_mut() {
            cursor.after = cursor.floor;
            cursor.turn += 1;
        }
    }

    /// Rows that are left out from now on left memory: a fetch under way may hold later rows of their keys. What was
    /// read of all others stays read.
    pub(crate) fn outdate(&mut self) {
        for cursor in self.buckets.values_mut() {
            cursor.turn += 1;
        }
    }

    /// Nothing is known of the bucket any more: it is read from its very start.
    pub(crate) fn forget(&mut self, bucket: i16) {
        self.forgotten += 1;
        let cursor = self.buckets.entry(bucket).or_insert(FRESH);
        *cursor = Cursor { turn: cursor.turn + 1, ..FRESH };
    }

    /// [`Cursors::forget`] of all buckets.
    pub(crate) fn forget_all(&mut self) {
        self.forgotten += 1;
        for cursor in self.buckets.values_mut() {
            *cursor = Cursor { turn: cursor.turn + 1, ..FRESH };
        }
    }

    /// Changes whenever a floor was given up: what was found out before must not be used.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Floors of the given buckets.
    pub(crate) fn floors(&self, buckets: impl IntoIterator<Item = i16>) -> Vec<(i16, i64)> {
        let floor = |bucket| (bucket, self.buckets.get(&bucket).map_or(0, |cursor| cursor.floor));
        buckets.into_iter().map(floor).collect()
    }

    /// Raises floors to `ceiling` and no higher than the lowest unsent rows allow.
    ///
    /// Rule: the caller has proof that in the snapshot of `raises` every row up to `ceiling` that will ever exist
    /// is visible. Then none can appear below the floor later; what comes back there comes with a new era.
    pub(crate) fn raise(&mut self, ceiling: i64, raises: &[Raise]) {
        for raise in raises {
            let Some(cursor) = self.buckets.get_mut(&raise.bucket) else { continue };
            if cursor.era == Some(raise.era) {
                cursor.floor = cursor.floor.max(raise.most.map_or(ceiling, |most| most.min(ceiling)));
                cursor.after = cursor.after.max(cursor.floor);
            }
        }
    }

    /// Whether the bucket is still in this era.
    pub(crate) fn is_era(&self, bucket: i16, era: i64) -> bool {
        self.buckets.get(&bucket).is_some_and(|cursor| cursor.era == Some(era))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While memory is empty.
    fn plan(cursors: &mut Cursors, buckets: &[(i16, i64)], rows: i64) -> Vec<Page> {
        cursors.plan(buckets, rows, 1_000, |_, _| Load::default())
    }

    #[test]
    fn a_bucket_with_a_backlog_gets_the_larger_pages() {
        let mut cursors = Cursors::default();
        let pages = plan(&mut cursors, &[(1, 100), (2, 100)], 100);
        assert_eq!(pages.iter().map(|p| p.take).collect::<Vec<_>>(), [8, 8]);
        cursors.advance(&pages[0], Some(10), true, 100);
        cursors.advance(&pages[1], Some(3), false, 100);
        let pages = plan(&mut cursors, &[(1, 100), (2, 100)], 100);
        let page = |b| pages.iter().find(|p| p.bucket == b).expect("planned");
        assert_eq!((page(1).after, page(1).take), (10, 32));
        assert_eq!((page(2).after, page(2).take), (3, 8));
        assert_eq!(pages[0].bucket, 2, "another bucket comes first");
    }

    #[test]
    fn pages_together_stay_about_within_the_rows_asked_for() {
        let mut cursors = Cursors::default();
        let buckets: Vec<(i16, i64)> = (0..64).map(|bucket| (bucket, 100)).collect();
        let asked: i64 = plan(&mut cursors, &buckets, 100).iter().map(|p| p.take).sum();
        assert!((64..=128).contains(&asked), "{asked}");
    }

    #[test]
    fn a_rewound_bucket_refuses_the_fetch_that_began_before() {
        let mut cursors = Cursors::default();
        let page = plan(&mut cursors, &[(5, 10)], 10)[0];
        assert!(cursors.is_current(&page));
        cursors.rewind(5);
        assert!(!cursors.is_current(&page));
        let page = plan(&mut cursors, &[(5, 10)], 10)[0];
        assert!(cursors.is_current(&page));
        cursors.outdate();
        assert!(!cursors.is_current(&page));
    }

    #[test]
    fn a_cursor_goes_back_no_further_than_to_what_is_missing() {
        let mut cursors = Cursors::default();
        let page = known(&mut cursors);
        cursors.advance(&page, Some(50), true, 100);
        cursors.back_to(1, 60);
        cursors.outdate();
        assert_eq!(plan(&mut cursors, &[(1, 10)], 10)[0].after, 50, "nothing is missing below");
        cursors.back_to(1, 40);
        assert_eq!(plan(&mut cursors, &[(1, 10)], 10)[0].after, 39);
        cursors.raise(45, &[Raise { bucket: 1, era: 7, most: None }]);
        cursors.back_to(1, 40);
        assert_eq!(plan(&mut cursors, &[(1, 10)], 10)[0].after, 45, "and not below the floor");
    }

    #[test]
    fn what_is_known_takes_no_room_of_a_page() {
        let mut cursors = Cursors::default();
        let known = |bucket, after| {
            if (bucket, after) == (1, 0) { Load { rows: 7, bytes: 70 } } else { Load::default() }
        };
        let page = cursors.plan(&[(1, 3)], 100, 1_000, known)[0];
        assert_eq!((page.room, page.take, page.bytes), (3, 10, 1_070));
    }

    #[test]
    fn a_bucket_is_asked_for_no_more_than_it_has_room_for() {
        let mut cursors = Cursors::default();
        assert_eq!(plan(&mut cursors, &[(1, 3)], 100)[0].take, 3);
    }

    fn known(cursors: &mut Cursors) -> Page {
        let page = plan(cursors, &[(1, 10)], 10)[0];
        assert!(cursors.enter(&page, 7), "read from the very start");
        page
    }

    #[test]
    fn a_floor_stays_below_the_lowest_unsent_row_and_the_ceiling_and_never_sinks() {
        let mut cursors = Cursors::default();
        known(&mut cursors);
        let raise = |most| [Raise { bucket: 1, era: 7, most }];
        for (ceiling, most, floor) in [(10, Some(5), 5), (10, None, 10), (8, None, 10), (20, Some(30), 20)] {
            cursors.raise(ceiling, &raise(most));
            assert_eq!(cursors.floors([1]), [(1, floor)]);
        }
        cursors.rewind(1);
        assert_eq!(plan(&mut cursors, &[(1, 10)], 10)[0].after, 20, "the floor is where a bucket begins");
    }

    #[test]
    fn another_era_takes_the_floor_away_and_makes_older_proofs_useless() {
        let mut cursors = Cursors::default();
        known(&mut cursors);
        cursors.raise(10, &[Raise { bucket: 1, era: 7, most: None }]);
        let page = plan(&mut cursors, &[(1, 10)], 10)[0];
        let before = cursors.forgotten();
        assert!(!cursors.enter(&page, 8), "rows below the floor were not read");
        assert!(!cursors.is_current(&page) && cursors.forgotten() != before && cursors.is_era(1, 8));
        cursors.raise(10, &[Raise { bucket: 1, era: 7, most: None }]);
        assert_eq!(cursors.floors([1]), [(1, 0)]);
    }
}
