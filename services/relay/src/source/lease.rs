//! Which buckets this process owns, and until when by its own clock. No I/O.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use waybill_outbox::BUCKETS;

use crate::config::MARGIN;

/// What one round with the database brought.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    /// Own clock just before the first statement of the round was sent.
    pub(crate) started: Instant,
    /// Relay instances that live, this one included.
    pub(crate) live: i64,
    /// Buckets with their epochs that were renewed.
    pub(crate) renewed: Vec<(i16, i64)>,
    /// Buckets with their new epochs that were taken.
    pub(crate) acquired: Vec<(i16, i64)>,
}

/// Difference that a round made.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// Newly owned buckets.
    pub(crate) gained: Vec<i16>,
    /// Buckets that another instance may own now.
    pub(crate) lost: Vec<i16>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Leases {
    held: BTreeMap<i16, Lease>,
    ttl: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    epoch: i64,
    until: Instant,
    /// Since when it is being given up.
    leaving: Option<Instant>,
    /// Its end was noticed.
    expired: bool,
}

/// Buckets that one of `live` instances should own.
pub(crate) fn share(live: i64) -> usize {
    usize::try_from(BUCKETS).unwrap_or(0).div_ceil(usize::try_from(live).unwrap_or(1).max(1))
}

impl Leases {
    /// No leases; each will last for `ttl`.
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { held: BTreeMap::new(), ttl }
    }

    /// Owned buckets with their epochs, for the next round.
    pub(crate) fn held(&self) -> Vec<(i16, i64)> {
        self.held.iter().map(|(bucket, lease)| (*bucket, lease.epoch)).collect()
    }

    /// Number of owned buckets.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Takes in a round.
    pub(crate) fn renew(&mut self, round: &Round) -> Change {
        // Rule: the lease ends, for its owner, 2 s before its time to live counted from its own clock just before
        // the renewing call. Counted from after the call, a slow database would make a dead lease look fresh.
        let until = round.started + self.ttl - MARGIN;
        let mut change = Change::default();
        self.held.retain(|bucket, lease| {
            let kept = round.renewed.contains(&(*bucket, lease.epoch));
            if kept {
                lease.until = until;
                if std::mem::take(&mut lease.expired) {
                    change.gained.push(*bucket);
                }
            } else {
                change.lost.push(*bucket);
            }
            kept
        });
        for (bucket, epoch) in &round.acquired {
            let lease = Lease { epoch: *epoch, until, leaving: None, expired: false };
            self.held.insert(*bucket, lease);
            change.gained.push(*bucket);
        }
        change
    }

    /// Whether a row of the bucket may be handed to the producer now.
    pub(crate) fn may_produce(&self, bucket: i16, now: Instant) -> bool {
        self.held.get(&bucket).is_some_and(|lease| now < lease.until)
    }

    /// Buckets to read now.
    pub(crate) fn serving(&self, now: Instant) -> Vec<i16> {
        let serving = self.held.iter().filter(|(_, lease)| lease.leaving.is_none() && now < lease.until);
        serving.map(|(bucket, _)| *bucket).collect()
    }

    /// Buckets whose time is over by the own clock, each told once. They stay held until the database says who
    /// owns them: a renewal under the same epoch proves that nobody else did.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<i16> {
        let over = self.held.iter_mut().filter(|(_, lease)| !lease.expired && lease.until <= now);
        over.map(|(bucket, lease)| {
            lease.expired = true;
            *bucket
        })
        .collect()
    }

    /// Chooses buckets to give up when more than a fair share is owned; `busy` ones last.
    pub(crate) fn leave(&mut self, live: i64, now: Instant, busy: impl Fn(i16) -> bool) -> Vec<i16> {
        let surplus = self.held.values().filter(|lease| lease.leaving.is_none()).count();
        let surplus = surplus.saturating_sub(share(live));
        let mut staying: Vec<_> = self.held.iter_mut().filter(|(_, lease)| lease.leaving.is_none()).collect();
        staying.sort_by_key(|(bucket, _)| busy(**bucket));
        let chosen = staying.into_iter().take(surplus).map(|(bucket, lease)| {
            lease.leaving = Some(now);
            *bucket
        });
        chosen.collect()
    }

    /// Buckets being given up, with their epochs. One that was not drained in time is kept after all.
    pub(crate) fn leaving(&mut self, now: Instant) -> Vec<(i16, i64)> {
        let patience = self.ttl;
        for lease in self.held.values_mut() {
            // A dead partition never drains: planned handover is bounded.
            if lease.leaving.is_some_and(|since| now.saturating_duration_since(since) > patience) {
                lease.leaving = None;
            }
        }
        let leaving = self.held.iter().filter(|(_, lease)| lease.leaving.is_some());
        leaving.map(|(bucket, lease)| (*bucket, lease.epoch)).collect()
    }

    /// The buckets are given back.
    pub(crate) fn released(&mut self, buckets: &[i16]) {
        self.held.retain(|bucket, _| !buckets.contains(bucket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn round(started: Instant, renewed: &[(i16, i64)], acquired: &[(i16, i64)]) -> Round {
        Round { started, live: 1, renewed: renewed.to_vec(), acquired: acquired.to_vec() }
    }

    #[test]
    fn producing_stops_two_seconds_before_the_lease_counted_from_before_the_call() {
        let mut leases = Leases::new(TTL);
        let start = Instant::now();
        leases.renew(&round(start, &[], &[(7, 1)]));
        assert!(leases.may_produce(7, start + Duration::from_millis(7_999)));
        assert!(!leases.may_produce(7, start + Duration::from_secs(8)));
        assert!(!leases.may_produce(8, start));
    }

    #[test]
    fn a_renewal_that_took_longer_than_the_lease_permits_nothing() {
        let mut leases = Leases::new(TTL);
        let start = Instant::now();
        leases.renew(&round(start, &[], &[(7, 1)]));
        let change = leases.renew(&round(start, &[(7, 1)], &[]));
        assert_eq!(change, Change::default());
        assert!(
            !leases.may_produce(7, start + Duration::from_secs(12)),
            "the answer came 12 s after the call"
        );
    }

    #[test]
    fn a_bucket_that_the_database_does_not_renew_is_lost() {
        let mut leases = Leases::new(TTL);
        let start = Instant::now();
        leases.renew(&round(start, &[], &[(1, 5), (2, 1)]));
        let change = leases.renew(&round(start, &[(1, 6), (2, 1)], &[]));
        assert_eq!(change.lost, [1], "another epoch is another owner's");
        assert_eq!(leases.held(), [(2, 1)]);
    }

    #[test]
    fn an_expired_lease_is_told_once_and_comes_back_when_nobody_took_it() {
        let mut leases = Leases::new(TTL);
        let start = Instant::now();
        leases.renew(&round(start, &[], &[(1, 5)]));
        let late = start + Duration::from_secs(9);
        assert_eq!(leases.expire(late), [1]);
        assert!(leases.expire(late).is_empty() && leases.serving(late).is_empty());
        assert_eq!(leases.renew(&round(late, &[(1, 5)], &[])).gained, [1]);
        assert_eq!(leases.serving(late), [1]);
    }

    #[test]
    fn a_surplus_is_given_up_idle_buckets_first_and_kept_when_it_does_not_drain() {
        let mut leases = Leases::new(TTL);
        let now = Instant::now();
        let all: Vec<(i16, i64)> = (0..64).map(|b| (b, 1)).collect();
        leases.renew(&round(now, &[], &all));
        assert_eq!(leases.leave(2, now, |bucket| bucket < 32), (32..64).collect::<Vec<i16>>());
        assert_eq!(leases.serving(now).len(), 32);
        leases.released(&(33..64).collect::<Vec<i16>>());
        assert_eq!(leases.leaving(now), [(32, 1)]);
        assert!(leases.leaving(now + TTL * 2).is_empty(), "kept after all");
    }

    #[test]
    fn shares_cover_all_buckets() {
        for live in 1..=70 {
            assert!(share(live) * live as usize >= 64);
        }
        assert_eq!((share(0), share(1), share(3)), (64, 64, 22));
    }
}
