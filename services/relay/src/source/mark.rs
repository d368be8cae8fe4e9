//! Acknowledged rows on their way to their mark. No I/O.

use std::time::{Duration, Instant};

use super::row::RowId;

/// Collects acknowledgements until enough came or the oldest waited long enough.
#[derive(Debug)]
pub(crate) struct Marks {
    waiting: Vec<RowId>,
    since: Option<Instant>,
    not_before: Option<Instant>,
    interval: Duration,
    batch: usize,
}

impl Marks {
    /// Due after `interval`, or at once with `batch` acknowledgements.
    pub(crate) fn new(interval: Duration, batch: usize) -> Self {
        Self { waiting: Vec::new(), since: None, not_before: None, interval, batch }
    }

    /// A row was acknowledged.
    pub(crate) fn push(&mut self, id: RowId, now: Instant) {
        self.since.get_or_insert(now);
        self.waiting.push(id);
    }

    /// When the next mark is due.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        let since = self.since?;
        let due = if self.waiting.len() >= self.batch { now } else { since + self.interval };
        Some(self.not_before.map_or(due, |earliest| due.max(earliest)))
    }

    /// All that wait, when a mark is due.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Vec<RowId>> {
        self.due(now).filter(|due| *due <= now)?;
        (self.since, self.not_before) = (None, None);
        Some(std::mem::take(&mut self.waiting))
    }

    /// A mark failed, perhaps: these are tried again, not before `earliest`.
    pub(crate) fn put_back(&mut self, ids: Vec<RowId>, now: Instant, earliest: Instant) {
        self.waiting.extend(ids);
        self.since.get_or_insert(now);
        self.not_before = Some(earliest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(seq: i64) -> RowId {
        RowId { seq, id: uuid::Uuid::nil() }
    }

    #[test]
    fn a_mark_is_due_after_the_interval_or_with_a_full_batch() {
        let mut marks = Marks::new(Duration::from_millis(5), 3);
        let now = Instant::now();
        assert!(marks.due(now).is_none() && marks.take(now).is_none());
        marks.push(id(1), now);
        assert!(marks.take(now).is_none());
        assert_eq!(marks.take(now + Duration::from_millis(5)).expect("due").len(), 1);
        (1..=3).for_each(|seq| marks.push(id(seq), now));
        let ids = marks.take(now).expect("full");
        marks.put_back(ids, now, now + Duration::from_secs(1));
        assert!(
            marks.take(now + Duration::from_millis(999)).is_none(),
            "a database that fails is left in peace"
        );
        assert_eq!(marks.take(now + Duration::from_secs(1)).expect("due").len(), 3);
    }
}
