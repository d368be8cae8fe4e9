//! Each rule by itself.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::{TimeDelta, Utc};
use futures::future::join_all;
use tokio::time::timeout;

use super::{
    super::{
        Breaker, BreakerPhase, BreakerSettings, Ruling,
        machine::{Machine, REMEMBERED},
    },
    fails, id, settings, soon, waits,
};

const LONG: Duration = Duration::from_secs(3_600);

/// Opened by failures of messages that no test uses.
fn open(probe: Duration) -> Arc<Breaker> {
    let breaker = Breaker::new(settings(probe));
    let counted =
        (1_000..1_020).filter(|n| breaker.failed_transiently(id(*n), true) == Ruling::Count).count();
    assert_eq!((counted, breaker.state().phase), (9, BreakerPhase::Open));
    breaker
}

#[test]
fn one_message_that_fails_again_and_again_does_not_open() {
    let breaker = Breaker::new(BreakerSettings::default());
    assert!((0..100).all(|_| breaker.failed_transiently(id(1), true) == Ruling::Count));
    assert_eq!(breaker.state().phase, BreakerPhase::Closed);
}

#[test]
fn messages_that_failed_before_open_it_only_when_all_of_them_fail() {
    let breaker = Breaker::new(BreakerSettings::default());
    // Three in four fail, on the tiers: some of them are being mended.
    for n in 0..300 {
        if n % 4 == 0 {
            breaker.succeeded(1);
        }
        assert_eq!(breaker.failed_transiently(id(n), false), Ruling::Count);
    }
    // Nothing succeeds any more.
    let counted =
        (300..400).take_while(|n| breaker.failed_transiently(id(*n), false) == Ruling::Count).count();
    assert!(counted < 20, "{counted}");
    assert_eq!(breaker.state().phase, BreakerPhase::Open);
}

#[test]
fn a_first_failure_stays_one_when_the_message_fails_again() {
    let breaker = Breaker::new(BreakerSettings::default());
    for n in 0..9 {
        assert_eq!(breaker.failed_transiently(id(n), true), Ruling::Count);
        assert_eq!(breaker.failed_transiently(id(n), false), Ruling::Count);
    }
    assert_eq!(breaker.failed_transiently(id(9), true), Ruling::Hold);
}

#[test]
fn half_is_not_most() {
    let breaker = Breaker::new(BreakerSettings::default());
    for n in 0..100 {
        breaker.succeeded(1);
        assert_eq!(breaker.failed_transiently(id(n), true), Ruling::Count);
    }
    assert_eq!(breaker.failed_transiently(id(100), true), Ruling::Hold);
    let state = breaker.state();
    assert_eq!(state.reason.as_deref(), Some("11 of the last 20 messages failed transiently"));
    assert!(Utc::now() - state.since < TimeDelta::minutes(1));
}

#[test]
fn it_stops_before_the_limit_is_dead_lettered_and_until_it_is_resumed() {
    let breaker = Breaker::new(BreakerSettings::default());
    let fail = |n| breaker.failed_permanently(id(n));
    for n in 0..49 {
        // A batch that is run again tells it twice.
        assert_eq!((fail(n), fail(n)), (Ruling::Count, Ruling::Count));
    }
    assert_eq!((fail(49), breaker.state().phase), (Ruling::Hold, BreakerPhase::Stopped));
    assert_eq!(breaker.state().reason.as_deref(), Some("50 messages in a row failed for good"));
    // Not even a success of a batch under way.
    breaker.succeeded(1);
    assert_eq!((fail(1), breaker.failed_transiently(id(2), true)), (Ruling::Hold, Ruling::Hold));
    assert!(breaker.resume());
    assert!(!breaker.resume());
    assert_eq!((fail(49), breaker.state().phase), (Ruling::Count, BreakerPhase::Closed));
}

#[test]
fn a_success_in_between_begins_the_row_again_and_a_transient_failure_does_not() {
    let breaker = Breaker::new(BreakerSettings::default());
    for n in 0..300 {
        assert_eq!(breaker.failed_permanently(id(n)), Ruling::Count);
        if n % 49 == 48 {
            breaker.succeeded(1);
        }
    }
    breaker.succeeded(1);
    let fails = |n| {
        let transient = breaker.failed_transiently(id(1_000 + n % 3), true);
        (transient, breaker.failed_permanently(id(n)))
    };
    assert!((0..49).all(|n| fails(n) == (Ruling::Count, Ruling::Count)));
    assert_eq!(fails(49).1, Ruling::Hold);
}

#[test]
fn what_a_batch_finished_is_told_in_the_order_of_its_offsets() {
    let breaker = Breaker::new(BreakerSettings::default());
    let dead = (0..60_i64).map(|n| (2 * n, Some(id(n.unsigned_abs().into()))));
    let done = (0..60).map(|n| (2 * n + 1, None));
    assert_eq!(breaker.finished(dead.clone().chain(done).collect()), None);
    assert_eq!(breaker.finished(dead.rev().collect()), Some(98), "49 go, the 50th is held");
    assert_eq!(breaker.state().phase, BreakerPhase::Stopped);
}

#[tokio::test]
async fn whoever_waits_goes_on_at_once_when_a_batch_under_way_succeeds() {
    let breaker = open(LONG);
    let waiting = (0..8).map(|_| {
        tokio::spawn({
            let breaker = Arc::clone(&breaker);
            async move { breaker.admit().await.is_probe() }
        })
    });
    let waiting: Vec<_> = waiting.collect();
    assert!(waits(breaker.admit()).await);
    breaker.succeeded(1);
    let probes = soon(join_all(waiting)).await;
    assert!(probes.into_iter().all(|probe| !probe.unwrap()));
}

#[tokio::test]
async fn a_stopped_line_admits_nobody_until_it_is_resumed() {
    let breaker = Breaker::new(settings(Duration::ZERO));
    for n in 0..50 {
        let _ruling = breaker.failed_permanently(id(n));
    }
    let admission = breaker.admit();
    tokio::pin!(admission);
    assert!(timeout(Duration::from_millis(20), &mut admission).await.is_err());
    breaker.resume();
    assert!(!soon(admission).await.is_probe());
}

#[tokio::test]
async fn a_turn_that_is_not_used_goes_to_the_next_and_so_does_a_place_in_the_queue() {
    let breaker = open(Duration::ZERO);
    let first = soon(breaker.admit()).await;
    assert!(first.is_probe());
    assert!(waits(breaker.admit()).await, "one probe at a time, and this one gave up its place");
    let next = breaker.admit();
    tokio::pin!(next);
    assert!(timeout(Duration::ZERO, &mut next).await.is_err());
    drop(first);
    assert!(soon(next).await.is_probe());
    assert!(soon(breaker.admit()).await.is_probe());
}

#[tokio::test]
async fn probes_are_spaced_and_the_third_failed_one_lets_the_message_go() {
    let space = Duration::from_millis(30);
    let breaker = open(space);
    let opened = Instant::now();
    for (n, ruling) in [(1, Ruling::Hold), (2, Ruling::Hold), (3, Ruling::Count)] {
        let pass = soon(breaker.admit()).await;
        assert!(opened.elapsed() + Duration::from_millis(1) >= space * n, "probe {n}");
        assert_eq!(breaker.failed_transiently(id(2), true), Ruling::Hold, "of a batch that was under way");
        pass.tries(id(1));
        assert_eq!(breaker.failed_transiently(id(1), true), ruling);
        assert_eq!(breaker.failed_transiently(id(1), true), Ruling::Hold, "one try is one probe");
        drop(pass);
    }
}

#[test]
fn failed_probes_of_messages_that_went_away_are_forgotten() {
    let now = Instant::now();
    let mut machine = Machine::new(settings(Duration::ZERO), now);
    (0..20).for_each(|n| _ = machine.failed_transiently(id(n), true, now));
    for n in 0..5_000 {
        machine.probe(Some(id(n)));
        assert_eq!(machine.failed_transiently(id(n), true, now), Ruling::Hold);
        assert!(machine.remembered() <= 20 + 50 + REMEMBERED);
    }
}

#[tokio::test]
async fn a_probe_that_fails_for_good_goes_its_way_and_the_next_is_spaced() {
    let space = Duration::from_millis(30);
    let breaker = open(space);
    let pass = soon(breaker.admit()).await;
    let probed = Instant::now();
    pass.tries(id(1));
    assert_eq!(breaker.failed_permanently(id(1)), Ruling::Count);
    drop(pass);
    assert_eq!(breaker.state().phase, BreakerPhase::Open, "it was no success");
    assert!(soon(breaker.admit()).await.is_probe());
    assert!(probed.elapsed() + Duration::from_millis(1) >= space);
}

#[tokio::test]
async fn what_a_dropped_probe_named_is_no_probe_any_more() {
    let breaker = open(Duration::ZERO);
    for _ in 0..5 {
        let pass = soon(breaker.admit()).await;
        pass.tries(id(1));
        drop(pass);
        assert_eq!(breaker.failed_transiently(id(1), true), Ruling::Hold);
    }
    assert_eq!(fails(&breaker, soon(breaker.admit()).await, id(1)), Ruling::Hold, "its first");
}
