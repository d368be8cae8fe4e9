//! Notices a partition that stands still in the client for no reason of ours: paused though nobody holds it, or not
//! fetched. Reports of such stalls exist for every version of the library, and nothing else would show one.

use std::collections::HashMap;

use rdkafka::Statistics;

/// What the client says about one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reading {
    /// Next offset handed to the application.
    app: i64,
    /// Next offset to fetch; passes control records, which `app` does not.
    next: i64,
    /// End of what can be read.
    end: i64,
    /// Records fetched and not handed over yet.
    fetched: i64,
}

#[derive(Debug, Default)]
pub(super) struct Watchdog {
    last: HashMap<(String, i32), Reading>,
}

impl Watchdog {
    /// Partitions in which two looks in a row saw the same unread record, and nothing on its way.
    pub(super) fn look(&mut self, statistics: &Statistics) -> Vec<(String, i32)> {
        let mut readings = HashMap::new();
        for (name, topic) in &statistics.topics {
            for partition in topic.partitions.values().filter(|partition| partition.partition >= 0) {
                let reading = Reading {
                    app: partition.app_offset,
                    next: partition.next_offset,
                    end: partition.ls_offset,
                    fetched: partition.fetchq_cnt,
                };
                readings.insert((name.clone(), partition.partition), reading);
            }
        }
        self.compare(readings)
    }

    fn compare(&mut self, readings: HashMap<(String, i32), Reading>) -> Vec<(String, i32)> {
        let behind =
            |reading: &Reading| reading.next >= 0 && reading.next < reading.end && reading.fetched == 0;
        let stalled = |(key, now): &(&(String, i32), &Reading)| {
            let before = self.last.get(*key);
            behind(now)
                && before
                    .is_some_and(|before| behind(before) && (before.app, before.next) == (now.app, now.next))
        };
        let stalled = readings.iter().filter(stalled).map(|(key, _)| key.clone()).collect();
        self.last = readings;
        stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(watchdog: &mut Watchdog, app: i64, next: i64, end: i64, fetched: i64) -> bool {
        let reading = Reading { app, next, end, fetched };
        !watchdog.compare(HashMap::from([(("t".to_owned(), 0), reading)])).is_empty()
    }

    #[test]
    fn a_partition_that_is_behind_and_does_not_move_is_noticed_at_the_second_look() {
        let mut watchdog = Watchdog::default();
        assert!(!look(&mut watchdog, 5, 5, 9, 0));
        assert!(look(&mut watchdog, 5, 5, 9, 0));
        assert!(look(&mut watchdog, 5, 5, 20, 0), "until it moves");
        assert!(!look(&mut watchdog, 6, 6, 20, 0));
    }

    #[test]
    fn one_that_never_delivered_a_record_is_noticed_too() {
        let mut watchdog = Watchdog::default();
        look(&mut watchdog, -1001, 0, 9, 0);
        assert!(look(&mut watchdog, -1001, 0, 9, 0));
    }

    #[test]
    fn idle_busy_and_prefetched_partitions_and_control_records_are_no_stall() {
        for (app, next, end, fetched) in [(9, 9, 9, 0), (5, 5, 9, 4), (8, 9, 9, 0), (-1001, -1001, -1001, 0)]
        {
            let mut watchdog = Watchdog::default();
            look(&mut watchdog, app, next, end, fetched);
            assert!(!look(&mut watchdog, app, next, end, fetched), "{app} {next} {end} {fetched}");
        }
        let mut watchdog = Watchdog::default();
        look(&mut watchdog, 5, 5, 9, 0);
        assert!(!look(&mut watchdog, 6, 6, 9, 0), "slow is not still");
    }
}
