//! Each key in its original order and only up to its first failure; canary, stop and cancel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use serde_json::{Value, json};
use uuid::Uuid;
use waybill_testkit::eventually;

use crate::consumer::{Does, Played, say};
use crate::fixture::{Dead, Fixture, REPLAY, everything, id};

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

/// Item ids of a plan's letters that are left out as `earlier_left_out`, with what each is behind.
fn held_back(plan: &Value) -> HashMap<Uuid, String> {
    let skipped = plan["skipped_items"].as_array().expect("letters").iter();
    let held = skipped.filter(|letter| letter["reason"] == "earlier_left_out");
    held.map(|letter| (id(&letter["item_id"]), letter["detail"].as_str().expect("why").to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_is_left_out_holds_back_the_later_ones_of_its_key_unless_it_is_settled() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let left_out = vec![("waybill-value-bytes".to_owned(), Some(b"2000000".to_vec()))];
    let first = |key: &str| Dead::new(key).at(10);
    let (unreadable, unsaid, done, away) =
        (first("unreadable"), first("unsaid"), first("done"), first("away"));
    let looping = Dead { replay: Some((Uuid::now_v7(), 3)), ..first("looping") };
    let pointer = Dead { value: None, foreign: left_out, ..first("pointer") };
    let keyless = Dead { key: None, ..unreadable.clone() };
    let keyless = Dead { message_id: Uuid::now_v7(), ..keyless };
    fixture.services.set(|known| {
        known.undecodable.extend([unreadable.message_id, keyless.message_id]);
        known.unsaid.insert(unsaid.message_id);
        known.done.insert(done.message_id);
    });
    let holding = [&unreadable, &unsaid, &looping, &pointer];
    let mut later = Vec::new();
    for dead in holding.into_iter().chain([&done, &away, &keyless]) {
        // One before and one behind each.
        for offset in [9, 11] {
            let near = Dead { key: dead.key.clone(), ..Dead::new("").at(offset) };
            near.produce(&fixture.topics).await;
            later.push((near, dead, offset));
        }
        dead.produce(&fixture.topics).await;
    }
    console.letters(21).await;
    let item = console.letter(&away).await;
    console.post("/v1/dlt/archive", &json!({"ids": [item["item_id"]], "reason": "known"})).await;
    for order in ["unordered", "key_ordered"] {
        fixture.services.set(|known| known.order = order);
        let plan = console.plan(&everything()).await;
        let mut expected = HashMap::new();
        for (near, dead, offset) in &later {
            if *offset == 11 && holding.iter().any(|holding| holding.message_id == dead.message_id) {
                let (near, dead) = (console.letter(near).await, console.letter(dead).await);
                let behind = format!("behind {}", dead["item_id"].as_str().expect("id"));
                expected.insert(id(&near["item_id"]), behind);
            }
        }
        assert_eq!((held_back(&plan), expected.len()), (expected, 4), "{plan}");
        assert_eq!(plan["ready"], 10, "{plan}");
    }
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_was_not_asked_for_holds_back_its_key_in_flight_and_in_ordered_groups_always() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let [before, first, second] = [0, 1, 2].map(|offset| Dead::new("k").at(offset));
    for dead in [&before, &first, &second] {
        dead.produce(&fixture.topics).await;
    }
    console.letters(3).await;
    let of = |dead: &Dead| json!({"filter": {"message_id": dead.message_id}});
    // Open, and not asked for: only a group that keeps an order minds.
    let unordered = console.plan(&of(&second)).await;
    assert_eq!(unordered["ready"], 1, "{unordered}");
    fixture.services.set(|known| known.order = "key_ordered");
    let ordered = console.plan(&of(&second)).await;
    let item = console.letter(&before).await["item_id"].as_str().expect("id").to_owned();
    assert_eq!(held_back(&ordered).into_values().collect::<Vec<_>>(), [format!("behind {item}")]);
    fixture.services.set(|known| known.order = "unordered");

    let played = Played::start(&fixture.topics, |_| Does::SayNothing);
    let other = console.replay(&console.plan(&of(&first)).await, &json!({})).await;
    eventually(async || if played.got().len() == 1 { Ok(()) } else { Err(played.got()) }).await;
    // In flight in another run: nothing passes it, neither what is planned now nor what was planned before.
    let plan = console.plan(&of(&second)).await;
    assert_eq!((&plan["ready"], held_back(&plan).len()), (&json!(0), 1), "{plan}");
    let run = console.ended(console.replay(&unordered, &json!({})).await).await;
    assert_eq!(
        (&run["progress"]["refused"], &run["troubles"][0]["detail"]),
        (&json!(1), &json!("an earlier letter of its key is in flight"))
    );
    // What lies before it may go.
    assert_eq!(console.plan(&of(&before)).await["ready"], 1);
    assert_eq!(played.got().len(), 1);
    say(&fixture.topics, first.message_id, other, "resolved").await;
    console.state(&first, "resolved").await;
    assert_eq!(console.plan(&of(&second)).await["ready"], 1);
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_runs_that_start_at_once_the_second_passes_nothing_that_the_first_has_taken() {
    let fixture = Fixture::new().await;
    let console = fixture.console_with(&[("DATABASE_LOCK_TIMEOUT", "20s")]).await;
    let letters = [1, 2].map(|offset| Dead::new("k").at(offset));
    let mut plans = Vec::new();
    for dead in &letters {
        dead.produce(&fixture.topics).await;
        console.letter(dead).await;
        plans.push(console.plan(&json!({"filter": {"message_id": dead.message_id}})).await);
    }
    assert_eq!(plans[1]["ready"], 1, "{}", plans[1]);
    let _played = Played::start(&fixture.topics, |_| Does::SayNothing);
    // Both wait for the earlier letter, in the order in which they came.
    let mut held = fixture.database.pool.begin().await.expect("begins");
    sqlx::query("select 1 from console.item where origin_offset = 1 for update")
        .execute(&mut *held)
        .await
        .expect("locks");
    let none = json!({});
    let (first, second, ()) = tokio::join!(
        console.replay(&plans[0], &none),
        async {
            fixture.waiting(1).await;
            console.replay(&plans[1], &none).await
        },
        async {
            fixture.waiting(2).await;
            held.commit().await.expect("commits");
        }
    );
    let second = console.ended(second).await;
    assert_eq!((&second["state"], &second["progress"]["refused"]), (&json!("done"), &json!(1)), "{second}");
    let first = console.get(&format!("/v1/dlt/replays/{first}")).await;
    assert_eq!(first["progress"]["refused"], 0, "{first}");
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_is_refused_at_the_start_stops_the_later_ones_of_its_key_alone() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let letters = [1, 2, 3].map(|offset| Dead::new("k").at(offset));
    for dead in &letters {
        dead.produce(&fixture.topics).await;
    }
    let known = console.letters(3).await;
    let plan = console.plan(&everything()).await;
    letters[1].produce(&fixture.topics).await;
    eventually(async || {
        let again = console.letter(&letters[1]).await;
        if again["deaths"] == 2 { Ok(()) } else { Err(again) }
    })
    .await;
    let _played = Played::start(&fixture.topics, |_| Does::Resolve);
    let run = console.ended(console.replay(&plan, &json!({})).await).await;
    let progress = &run["progress"];
    assert_eq!(
        (&progress["resolved"], &progress["refused"], &progress["stopped"]),
        (&json!(1), &json!(1), &json!(1)),
        "{run}"
    );
    let details: Vec<_> = run["troubles"].as_array().expect("letters").iter().map(|t| &t["detail"]).collect();
    assert_eq!(details, ["died again since the plan", "an earlier letter of its key was not handled"]);
    for (dead, state) in letters.iter().zip(["resolved", "open", "open"]) {
        console.state(dead, state).await;
    }
    assert_eq!(known.len(), 3);
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_an_earlier_replay_has_settled_meanwhile_stops_nothing() {
    let fixture = Fixture::new().await;
    let console = fixture.console_with(&[("CONSOLE_OUTCOME_TIMEOUT", "3s")]).await;
    let letters = [1, 2, 3].map(|offset| Dead::new("k").at(offset));
    let [first, second, third] = &letters;
    for dead in &letters {
        dead.produce(&fixture.topics).await;
    }
    console.letters(3).await;
    let resolves = third.message_id;
    let played = Played::start(&fixture.topics, move |got| {
        if got.message_id == resolves { Does::Resolve } else { Does::SayNothing }
    });
    let plan = console.plan(&json!({"filter": {"message_id": second.message_id}})).await;
    let earlier = console.replay(&plan, &json!({})).await;
    assert_eq!(console.ended(earlier).await["progress"]["no_outcome"], 1);
    let plan = console.plan(&everything()).await;
    assert_eq!(plan["ready"], 3, "{plan}");
    let run = console.replay(&plan, &json!({})).await;
    eventually(async || if played.got().len() == 2 { Ok(()) } else { Err(played.got()) }).await;
    // The late word of the earlier replay, while the second waits behind the first.
    say(&fixture.topics, second.message_id, earlier, "resolved").await;
    console.state(second, "resolved").await;
    say(&fixture.topics, first.message_id, run, "resolved").await;
    let run = console.ended(run).await;
    let progress = &run["progress"];
    assert_eq!(
        (&run["state"], &progress["resolved"], &progress["refused"], &progress["stopped"]),
        (&json!("done"), &json!(2), &json!(1), &json!(0)),
        "{run}"
    );
    assert_eq!(
        (&run["troubles"][0]["detail"], &progress["refused_settled"]),
        (&json!("resolved"), &json!(1))
    );
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_ends_also_when_nobody_can_say_what_was_sent() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let letters = [1, 2, 3].map(|offset| Dead::new(&format!("k{offset}")).at(offset));
    for dead in &letters {
        dead.produce(&fixture.topics).await;
    }
    console.letters(3).await;
    let run = console.replay(&console.plan(&everything()).await, &json!({"rate": 1})).await;
    console.state(&letters[0], "sent").await;
    console.stop().await;
    // As if the process had died with the first on its way, and then the replay topic went.
    let of_first = "where item_id = (select item_id from console.item where origin_offset = 1)";
    for statement in [
        format!("update console.replay_item set state = 'sending', sent_at = null {of_first}"),
        format!("update console.item set state = 'planned', sent_at = null, replays = 0 {of_first}"),
        "update console.replay_item set state = 'pending', sent_at = null where state = 'sent'".to_owned(),
        "update console.item set state = 'planned', sent_at = null where state = 'sent'".to_owned(),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&fixture.database.pool).await.expect("changed");
    }
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &fixture.topics.bootstrap).create().expect("client");
    let gone = fixture.topics.name(REPLAY);
    admin.delete_topics(&[&gone], &AdminOptions::new()).await.expect("deleted");

    let console = fixture.console_with(&[("CONSOLE_OUTCOME_TIMEOUT", "5s")]).await;
    // It waits for as long as it cannot see what was sent: nothing is sent twice by mistake.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let running = console.get(&format!("/v1/dlt/replays/{run}")).await;
    assert_eq!((&running["state"], &running["progress"]["sending"]), (&json!("running"), &json!(1)));
    console.post(&format!("/v1/dlt/replays/{run}/cancel"), &json!({})).await;
    let run = console.ended(run).await;
    let progress = &run["progress"];
    assert_eq!(
        (&run["state"], &progress["no_outcome"], &progress["stopped"]),
        (&json!("cancelled"), &json!(1), &json!(2)),
        "{run}"
    );
    let trouble = &run["troubles"][0];
    assert!(trouble["detail"].as_str().is_some_and(|why| why.starts_with("may have been sent")), "{run}");
    // Like one that was sent: in flight for a while, and no longer.
    let item = console.state(&letters[0], "sent").await;
    assert_eq!((&item["item_id"], &item["replays"]), (&trouble["item_id"], &json!(1)));
    console.state(&letters[1], "open").await;
    fixture.topics.add(REPLAY, 2, &[]).await;
    eventually(async || {
        let plan = console.plan(&everything()).await;
        if plan["ready"] == 3 { Ok(()) } else { Err(plan) }
    })
    .await;
    console.stop().await;
}
