//! A plan says what is sent and what not, and why; what dies later never joins it.

use axum::http::StatusCode;
use serde_json::json;
use uuid::Uuid;

use crate::fixture::{DLT, Dead, Fixture, everything, id};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reason_against_a_replay_is_told() {
    let fixture = Fixture::new().await;
    fixture.topics.add("orders.v1.ghost.dlt", 1, &[]).await;
    let console = fixture.console().await;
    let letters: Vec<Dead> = (0..8).map(|n| Dead::new(&format!("k{n}")).at(n)).collect();
    let [good, done, unreadable, looping, pointer, archived, tombstone, ghost] = &letters[..] else {
        unreachable!("eight letters")
    };
    let left_out = ("waybill-value-bytes".to_owned(), Some(b"2000000".to_vec()));
    let letters = [
        good.clone(),
        done.clone(),
        unreadable.clone(),
        Dead { replay: Some((Uuid::now_v7(), 3)), ..looping.clone() },
        Dead { value: None, foreign: vec![left_out], ..pointer.clone() },
        archived.clone(),
        Dead { value: None, ..tombstone.clone() },
        Dead { group: "ghost", ..ghost.clone() },
    ];
    for letter in &letters {
        letter.produce(&fixture.topics).await;
    }
    fixture.services.set(|known| {
        known.done.insert(done.message_id);
        known.undecodable.insert(unreadable.message_id);
    });
    console.letters(8).await;
    let item = console.letter(archived).await;
    console.post("/v1/dlt/archive", &json!({"ids": [item["item_id"]], "reason": "known"})).await;
    let ids: Vec<_> = console.letters(8).await.iter().map(|item| item["item_id"].clone()).collect();
    let plan = console.plan(&json!({ "ids": ids })).await;
    assert_eq!((&plan["ready"], &plan["skipped"]), (&json!(1), &json!(7)));
    let target = |name: &str| {
        let topic = fixture.topics.name(name);
        let found = plan["targets"].as_array().expect("targets").iter().find(|t| t["topic"] == *topic);
        found.expect("a target").clone()
    };
    let point = target(DLT);
    assert_eq!(
        point["skipped"],
        json!({"already_processed": 1, "archived": 1, "does_not_decode": 2, "loop_cap": 1, "value_left_out": 1})
    );
    assert_eq!(point["target_topic"], fixture.topics.name("orders.v1.point.replay"));
    assert_eq!(
        (&point["keys"], &point["first_key"], &point["replay_safety"]),
        (&json!(1), &json!("k0"), &json!("safe"))
    );
    assert_eq!(target("orders.v1.ghost.dlt")["skipped"], json!({"no_service": 1}));
    // The service is asked with the operator's own token.
    let tokens = fixture.services.known.lock().expect("not poisoned").tokens.clone();
    assert_eq!(tokens.into_iter().collect::<Vec<_>>(), [format!("Bearer {}", console.token)]);

    // Declared unsafe, or not there: nothing is sent in the dark.
    for (safety, expected) in
        [("never", json!({"replay_safety_never": 1})), ("safe", json!({"service_unreachable": 1}))]
    {
        fixture.services.set(|known| {
            known.safety = safety;
            known.status = (safety == "safe").then_some(StatusCode::INTERNAL_SERVER_ERROR);
        });
        let plan = console.plan(&json!({"filter": {"key": "k0"}})).await;
        assert_eq!(plan["targets"][0]["skipped"], expected);
    }
    fixture.services.stop();
    let loops = console.get("/v1/dlt/loops").await;
    assert_eq!(id(&loops["items"][0]["message_id"]), looping.message_id);
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_is_frozen_bounded_and_never_made_of_everything_by_mistake() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    for n in 0..3 {
        Dead::new(&format!("k{n}")).at(n).produce(&fixture.topics).await;
    }
    console.letters(3).await;
    assert_eq!(console.refused("/v1/dlt/plans", &json!({})).await, (400, "validation-failed".into()));
    assert_eq!(console.refused("/v1/dlt/plans", &json!({"filter": {"state": "open"}})).await.0, 400);
    // A name that is not known is a mistake.
    for filter in [json!({"topic": "orders.v2"}), json!({"group": "pint"})] {
        assert_eq!(
            console.refused("/v1/dlt/plans", &json!({ "filter": filter })).await,
            (422, "unknown-name".into())
        );
    }
    let plan = console.plan(&everything()).await;
    Dead::new("later").produce(&fixture.topics).await;
    console.letters(4).await;
    let again = console.get(&format!("/v1/dlt/plans/{}", id(&plan["plan_id"]))).await;
    assert_eq!((&again["ready"], &again["hash"]), (&json!(3), &plan["hash"]));
    let run = console.replay(&plan, &json!({})).await;
    let run = console.get(&format!("/v1/dlt/replays/{run}")).await;
    let total: i64 = run["progress"].as_object().expect("counts").values().filter_map(|n| n.as_i64()).sum();
    assert_eq!(total, 3);
    assert_eq!(console.plan(&json!({"all": true, "limit": 1})).await["skipped"], 1);
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_over_the_services_bound_are_asked_about_in_smaller_portions() {
    let fixture = Fixture::new().await;
    fixture.services.set(|known| known.most = 3_000);
    let console = fixture.console().await;
    let big = Dead { value: Some(vec![7; 60_000]), ..Dead::new("big") };
    big.produce(&fixture.topics).await;
    for n in 0..20 {
        Dead { value: Some(vec![1; 300]), ..Dead::new(&format!("k{n}")) }.produce(&fixture.topics).await;
    }
    console.letters(21).await;
    // Of the one that is too large alone the inbox is asked, and its value taken on trust.
    let plan = console.plan(&everything()).await;
    assert_eq!(plan["ready"], 21, "{plan}");
    console.stop().await;
}
