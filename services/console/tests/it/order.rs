//! Each key in its original order and only up to its first failure; canary, stop and cancel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use uuid::Uuid;
use waybill_testkit::eventually;

use crate::consumer::{Does, Played};
use crate::fixture::{Dead, Fixture, everything};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_stops_at_its_first_failure_and_the_others_go_on() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    // Died in another order than they lay in their source.
    let mut letters = Vec::new();
    for offset in [5_i64, 1, 3, 2, 0, 4, 7, 6, 8] {
        let key = ["a", "b", "c"][usize::try_from(offset).expect("small") % 3];
        let dead = Dead::new(key).at(offset);
        dead.produce(&fixture.topics).await;
        letters.push((offset, dead));
    }
    let place: HashMap<Uuid, i64> = letters.iter().map(|(offset, dead)| (dead.message_id, *offset)).collect();
    let fails = letters.iter().find(|(offset, _)| *offset == 4).map(|(_, dead)| dead.message_id);
    let played = Played::start(&fixture.topics, move |got| {
        if Some(got.message_id) == fails { Does::FailAgain } else { Does::Resolve }
    });
    console.letters(9).await;
    let plan = console.plan(&everything()).await;
    let run = console.replay(&plan, &json!({})).await;
    let run = console.ended(run).await;
    let progress = &run["progress"];
    assert_eq!(
        (&progress["resolved"], &progress["failed_again"], &progress["stopped"]),
        (&json!(7), &json!(1), &json!(1))
    );
    let mut by_key: HashMap<Option<Vec<u8>>, Vec<i64>> = HashMap::new();
    for got in played.got() {
        by_key.entry(got.key).or_default().push(place[&got.message_id]);
    }
    let of = |key: &str| by_key[&Some(key.as_bytes().to_vec())].clone();
    assert_eq!((of("a"), of("b"), of("c")), (vec![0, 3, 6], vec![1, 4], vec![2, 5, 8]));
    let (_, last) = letters.iter().find(|(offset, _)| *offset == 7).expect("the last of b");
    console.state(last, "open").await;
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_canary_goes_first_and_a_run_stops_after_so_many_failures() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    for n in 0..12 {
        Dead::new(&format!("k{n}")).at(n).produce(&fixture.topics).await;
    }
    console.letters(12).await;
    static READ: AtomicUsize = AtomicUsize::new(0);
    // The first fails, then three are well, and from there on each fails.
    let played = Played::start(&fixture.topics, |_| match READ.fetch_add(1, Ordering::SeqCst) {
        1..=3 => Does::Resolve,
        _ => Does::FailAgain,
    });
    let plan = console.plan(&everything()).await;
    let run = console.replay(&plan, &json!({"canary": 1})).await;
    let run = console.ended(run).await;
    assert_eq!((&run["state"], &run["reason"]), (&json!("stopped"), &json!("the canary failed")));
    assert_eq!((played.got().len(), &run["progress"]["stopped"]), (1, &json!(11)));
    let plan = console.plan(&everything()).await;
    let run = console.replay(&plan, &json!({"canary": 3, "stop_after_failures": 2, "rate": 10})).await;
    let run = console.ended(run).await;
    assert_eq!((&run["state"], &run["progress"]["resolved"]), (&json!("stopped"), &json!(3)));
    let failures = run["progress"]["failed_again"].as_i64().expect("count");
    assert!((2..9).contains(&failures), "{run}");
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_keeps_its_rate_and_is_cancelled_at_its_next_record() {
    let fixture = Fixture::new().await;
    let console = fixture.console_with(&[("CONSOLE_OUTCOME_TIMEOUT", "1s")]).await;
    for n in 0..40 {
        Dead::new(&format!("k{n}")).at(n).produce(&fixture.topics).await;
    }
    let letters = console.letters(40).await;
    let played = Played::start(&fixture.topics, |_| Does::SayNothing);
    let plan = console.plan(&everything()).await;
    let started = std::time::Instant::now();
    let run = console.replay(&plan, &json!({"rate": 5})).await;
    eventually(async || if played.got().len() >= 5 { Ok(()) } else { Err(played.got().len()) }).await;
    assert!(started.elapsed() > std::time::Duration::from_millis(700), "five records at five a second");
    console.post(&format!("/v1/dlt/replays/{run}/cancel"), &json!({})).await;
    let run = console.ended(run).await;
    assert_eq!(run["state"], "cancelled");
    let sent = 40 - run["progress"]["stopped"].as_i64().expect("count");
    assert!((5..40).contains(&sent), "{run}");
    let again = format!("/v1/dlt/replays/{}/cancel", run["replay_id"].as_str().expect("id"));
    assert_eq!(console.refused(&again, &json!({})).await, (409, "replay-ended".into()));
    // What has no outcome can be seen, and planned again after a while.
    eventually(async || {
        let plan = console.plan(&everything()).await;
        if plan["ready"] == 40 { Ok(()) } else { Err(plan) }
    })
    .await;
    assert_eq!(letters.len(), 40);
    console.stop().await;
}
