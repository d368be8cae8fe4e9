//! How far each bucket was read, and how much of it the next fetch asks for. No I/O.
//!
//! A cursor is an optimisation of one process, never a "last id": it goes back to the start when the bucket is
//! idle, every few hundred milliseconds, and whenever rows of the bucket left memory unsent.

use std::collections::BTreeMap;

/// Rows that a bucket is asked for while nothing is known of it.
const COLD: i64 = 8;

/// What one fetch reads of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    /// The bucket.
    pub(crate) bucket: i16,
    /// Rows above this `seq`.
    pub(crate) after: i64,
    /// At most so many.
    pub(crate) take: i64,
    turn: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    buckets: BTreeMap<i16, Cursor>,
    /// Which bucket comes first in the next plan.
    first: i16,
}

#[derive(Debug, Clone, Copy)]
struct Cursor {
    after: i64,
    want: i64,
    turn: u64,
}

impl Cursors {
    /// Pages for the given buckets, about `rows` rows together.
    pub(crate) fn plan(&mut self, buckets: &[i16], rows: i64) -> Vec<Page> {
        let fresh = Cursor { after: 0, want: COLD, turn: 0 };
        let wanted: i64 = buckets.iter().map(|b| self.buckets.entry(*b).or_insert(fresh).want).sum();
        let pages = buckets.iter().filter_map(|bucket| {
            let cursor = self.buckets.get(bucket)?;
            let take = if wanted > rows { (cursor.want * rows / wanted).max(1) } else { cursor.want };
            Some(Page { bucket: *bucket, after: cursor.after, take, turn: cursor.turn })
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

    /// A page was handled: `last` is its last `seq`; `full` says that more may follow. `most` is the largest page.
    pub(crate) fn advance(&mut self, page: &Page, last: Option<i64>, full: bool, most: i64) {
        let Some(cursor) = self.buckets.get_mut(&page.bucket) else { return };
        cursor.after = last.unwrap_or(cursor.after);
        cursor.want = if full { (page.take * 4).clamp(COLD, most.max(COLD)) } else { COLD };
    }

    /// Rows of the bucket left memory unsent, or its lease changed.
    pub(crate) fn rewind(&mut self, bucket: i16) {
        // Rule: a fetch that began before must not be used for this bucket. It may hold a later row of a key whose
        // earlier row has just left memory, and would publish it first.
        let fresh = Cursor { after: 0, want: COLD, turn: 0 };
        let cursor = self.buckets.entry(bucket).or_insert(fresh);
        cursor.after = 0;
        cursor.turn += 1;
    }

    /// [`Cursors::rewind`] of all buckets.
    pub(crate) fn rewind_all(&mut self) {
        for cursor in self.buckets.values_mut() {
            cursor.after = 0;
            cursor.turn += 1;
        }
    }

    /// Reads all buckets from their start again. Nothing left memory, so a fetch under way stays good.
    pub(crate) fn rescan(&mut self) {
        for cursor in self.buckets.values_mut() {
            cursor.after = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_with_a_backlog_gets_the_larger_pages() {
        let mut cursors = Cursors::default();
        let pages = cursors.plan(&[1, 2], 100);
        assert_eq!(pages.iter().map(|p| p.take).collect::<Vec<_>>(), [8, 8]);
        cursors.advance(&pages[0], Some(10), true, 100);
        cursors.advance(&pages[1], Some(3), false, 100);
        let pages = cursors.plan(&[1, 2], 100);
        let page = |b| pages.iter().find(|p| p.bucket == b).expect("planned");
        assert_eq!((page(1).after, page(1).take), (10, 32));
        assert_eq!((page(2).after, page(2).take), (3, 8));
        assert_eq!(pages[0].bucket, 2, "another bucket comes first");
    }

    #[test]
    fn pages_together_stay_about_within_the_rows_asked_for() {
        let mut cursors = Cursors::default();
        let buckets: Vec<i16> = (0..64).collect();
        let asked: i64 = cursors.plan(&buckets, 100).iter().map(|p| p.take).sum();
        assert!((64..=128).contains(&asked), "{asked}");
    }

    #[test]
    fn a_rewound_bucket_refuses_the_fetch_that_began_before() {
        let mut cursors = Cursors::default();
        let page = cursors.plan(&[5], 10)[0];
        cursors.rescan();
        assert!(cursors.is_current(&page));
        cursors.rewind(5);
        assert!(!cursors.is_current(&page));
        let page = cursors.plan(&[5], 10)[0];
        assert!(cursors.is_current(&page));
    }
}
