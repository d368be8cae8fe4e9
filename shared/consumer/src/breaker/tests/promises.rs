//! The promises, however things interleave.

use std::{
    cell::{Cell, RefCell},
    collections::{HashSet, VecDeque},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use tokio::task::{JoinSet, LocalSet, yield_now};

use super::{
    super::{
        Breaker, BreakerPhase, BreakerSettings, Ruling,
        machine::{Machine, REMEMBERED},
    },
    fails, id, settings, soon, waits,
};

prop_compose! {
    fn any_settings()(window in 1..30_usize, min in 1..500_u64, more in 0..3_000_u64, probes in 1..4_u32)
        (least in 1..=window, window in Just(window), min in Just(min), more in Just(more), probes in Just(probes))
        -> BreakerSettings {
        BreakerSettings {
            window,
            least,
            probe_min: Duration::from_millis(min),
            probe_max: Duration::from_millis(min + more),
            probes,
            permanent: 50,
        }
    }
}

proptest! {
    /// However messages, tiers and probes interleave, and whatever was before.
    #[test]
    fn while_everything_fails_no_more_than_the_bound_is_let_go(
        settings in any_settings(),
        before in prop::collection::vec((0..3_u8, 0..50_u128), 0..60),
        steps in prop::collection::vec((0..4_u8, 0..5_usize, 0..800_u64), 0..400),
    ) {
        let began = Instant::now();
        let (mut now, mut machine) = (began, Machine::new(settings.clone(), began));
        for (outcome, n) in before {
            match outcome {
                0 => machine.succeeded(1, now),
                1 => _ = machine.failed_transiently(id(n), n % 2 == 0, now),
                _ => _ = machine.failed_permanently(id(n), now),
            }
        }
        machine.resume(now);
        machine.succeeded(1, now);
        prop_assert_eq!(machine.phase(), BreakerPhase::Closed);

        // The message at the head of each partition; partitions in the order in which they wait.
        let mut heads: Vec<u128> = (0..5).map(|partition| 1_000 * (partition + 1)).collect();
        let mut queue: VecDeque<usize> = (0..5).collect();
        let (mut gone, mut in_tiers) = (HashSet::new(), Vec::new());
        for (step, partition, pause) in steps {
            let closed = machine.phase() == BreakerPhase::Closed;
            let at = match step {
                0 if !in_tiers.is_empty() => {
                    let message: u128 = in_tiers[partition % in_tiers.len()];
                    let ruling = machine.failed_transiently(id(message), false, now);
                    prop_assert!(closed || ruling == Ruling::Hold);
                    continue;
                }
                3 if !closed => {
                    now = now.max(machine.next_probe()) + Duration::from_millis(pause % 3);
                    queue.rotate_left(1);
                    queue[4]
                }
                _ => partition,
            };
            machine.probe((step == 3).then(|| id(heads[at])));
            let ruling = machine.failed_transiently(id(heads[at]), !heads[at].is_multiple_of(3), now);
            prop_assert!(closed || step == 3 || ruling == Ruling::Hold);
            if ruling == Ruling::Count {
                gone.insert(heads[at]);
                in_tiers.push(heads[at]);
                heads[at] += 1;
            }
            let bound = settings.bound(now - began);
            prop_assert!(gone.len() <= bound, "{} of {bound}", gone.len());
            prop_assert!(machine.remembered() <= settings.window + 50 + REMEMBERED);
        }
    }

    /// With poison at the heads of any partitions, and with waiters that give up at any time.
    #[test]
    fn a_dependency_that_recovers_is_noticed_one_probe_at_a_time_and_nobody_starves(
        partitions in prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.3), 1..8), 1..7),
        down in 0..60_u32,
        cancels in prop::collection::vec(any::<bool>(), 0..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(LocalSet::new().run_until(soon(recover(partitions, down, cancels))));
    }
}

struct Scene {
    breaker: Arc<Breaker>,
    down: Cell<u32>,
    probing: Cell<bool>,
    probes: Cell<usize>,
    cancels: RefCell<Vec<bool>>,
    gone: Cell<usize>,
}

async fn recover(partitions: Vec<Vec<bool>>, down: u32, cancels: Vec<bool>) {
    let (count, poison) = (partitions.len(), partitions.iter().flatten().filter(|poison| **poison).count());
    let scene = Rc::new(Scene {
        breaker: Breaker::new(BreakerSettings { least: 2, window: 4, ..settings(Duration::ZERO) }),
        down: Cell::new(down),
        probing: Cell::new(false),
        probes: Cell::new(0),
        cancels: RefCell::new(cancels),
        gone: Cell::new(0),
    });
    let mut workers = JoinSet::new();
    for (partition, messages) in (0_u128..).zip(partitions) {
        workers.spawn_local(work(Rc::clone(&scene), count, partition * 1_000, messages));
    }
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
    // With nothing but the dependency to fail, it opens once; 2 go before.
    assert!(scene.gone.get() >= poison);
    if poison == 0 {
        assert!(
            scene.gone.get() <= 2 + scene.probes.get() / 3,
            "{} of {}",
            scene.gone.get(),
            scene.probes.get()
        );
    }
    // A good message may be what closed it; the poison alone may have left it open.
    let _pass = scene.breaker.admit().await;
    scene.breaker.succeeded(1);
    assert_eq!(scene.breaker.state().phase, BreakerPhase::Closed);
}

/// Until its last message has succeeded or was let go.
async fn work(scene: Rc<Scene>, partitions: usize, base: u128, messages: Vec<bool>) {
    for (message, poison) in (base..).zip(messages) {
        loop {
            if scene.cancels.borrow_mut().pop() == Some(true) {
                let _cancelled = waits(scene.breaker.admit()).await;
                yield_now().await;
            }
            let before = scene.probes.get();
            let pass = scene.breaker.admit().await;
            if pass.is_probe() {
                let waited = scene.probes.replace(scene.probes.get() + 1) - before;
                // Three per message, and those while it is down: a few hundred.
                assert!(before < 5_000, "the line stays open for ever");
                assert!(waited <= 2 * partitions, "waited for {waited} probes of {partitions} partitions");
                assert!(!scene.probing.replace(true), "two probes at a time");
            }
            yield_now().await;
            if pass.is_probe() {
                scene.probing.set(false);
            }
            let down = scene.down.replace(scene.down.get().saturating_sub(1)) > 0;
            if !down && !poison {
                scene.breaker.succeeded(1);
                break;
            }
            if fails(&scene.breaker, pass, id(message)) == Ruling::Count {
                scene.gone.set(scene.gone.get() + 1);
                break;
            }
        }
    }
}
