//! Leases of several instances against a model of the database, under random schedules.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::lease::{Leases, Round};

const TTL: u64 = 10_000;

/// One bucket's row in the database; milliseconds of its clock.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    owner: Option<usize>,
    epoch: i64,
    expires: u64,
}

/// An instance with a round under way: when it began, and the database's answer, if it came that far.
struct Instance {
    leases: Leases,
    round: Option<(u64, Option<Round>)>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// However slow the database answers and however long an instance stands still: never may two produce for one
    /// bucket, and each owner has an epoch of its own.
    #[test]
    fn at_most_one_instance_may_produce_and_each_owner_has_its_own_epoch(
        steps in prop::collection::vec((0usize..3, 0u8..5, 0u64..4_000), 1..300)
    ) {
        let start = Instant::now();
        let at = |now: u64| start + Duration::from_millis(now);
        let mut instances: Vec<Instance> = (0..3)
            .map(|_| Instance { leases: Leases::new(Duration::from_millis(TTL)), round: None })
            .collect();
        let (mut row, mut now, mut owners) = (Row::default(), 0, Vec::new());
        for (who, step, pause) in steps {
            let instance = &mut instances[who];
            match step {
                // A round begins; it reaches the database some time later, and its answer comes later still.
                0 => if instance.round.is_none() { instance.round = Some((now, None)) },
                1 => if let Some((began, answer @ None)) = &mut instance.round {
                    let held = instance.leases.held();
                    let mut round = Round { started: at(*began), live: 1, renewed: vec![], acquired: vec![] };
                    if row.owner == Some(who) && held == [(0, row.epoch)] {
                        row.expires = now + TTL;
                        round.renewed = held;
                    } else if row.owner.is_none() || row.expires <= now {
                        row = Row { owner: Some(who), epoch: row.epoch + 1, expires: now + TTL };
                        owners.push((row.epoch, who));
                        round.acquired = vec![(0, row.epoch)];
                    }
                    *answer = Some(round);
                },
                2 => if let Some((_, Some(round))) = &instance.round {
                    instance.leases.renew(round);
                    instance.round = None;
                },
                3 => drop(instance.leases.expire(at(now))),
                _ => now += pause,
            }
            let producing = instances.iter().filter(|i| i.leases.may_produce(0, at(now))).count();
            prop_assert!(producing <= 1, "{producing} may produce at {now}");
        }
        for pair in owners.windows(2) {
            prop_assert!(pair[0].0 < pair[1].0, "epochs rise");
        }
    }
}
