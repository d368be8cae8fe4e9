//! Two operators at once, and processes that die half-way: each message once a replay, and the counts right.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};
use waybill_testkit::eventually;
use waybill_testkit::process::{Process, free_address};

use crate::consumer::{Does, Played};
use crate::fixture::{Dead, Fixture, ask, everything, id};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_operators_never_send_the_same_letter() {
    let fixture = Fixture::new().await;
    let (one, two) = (fixture.console().await, fixture.console().await);
    for n in 0..60 {
        Dead::new(&format!("k{}", n % 20)).at(n).produce(&fixture.topics).await;
    }
    one.letters(60).await;
    let played = Played::start(&fixture.topics, |_| Does::Resolve);
    let all = everything();
    let (first, second) = tokio::join!(one.plan(&all), two.plan(&all));
    assert_eq!((&first["ready"], &second["ready"]), (&json!(60), &json!(60)));
    let none = json!({});
    let (first, second) = tokio::join!(one.replay(&first, &none), two.replay(&second, &none));
    let (first, second) = (one.ended(first).await, two.ended(second).await);
    let count = |run: &Value, name: &str| run["progress"][name].as_i64().expect("count");
    let resolved = count(&first, "resolved") + count(&second, "resolved");
    let refused = count(&first, "refused") + count(&second, "refused");
    assert_eq!((resolved, refused), (60, 60), "{first} {second}");
    let got = played.got();
    let ids: HashSet<_> = got.iter().map(|got| got.message_id).collect();
    assert_eq!((got.len(), ids.len()), (60, 60));
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_is_killed_twice_sends_each_letter_once() {
    let fixture = Fixture::new().await;
    let folder = tempfile::tempdir().expect("folder");
    let (mut first, mut second) = (free_address(), free_address());
    let start = |address: std::net::SocketAddr, name: &str| {
        let mut settings = fixture.settings();
        settings.retain(|(name, _)| name != "HTTP_LISTEN");
        settings.push(("HTTP_LISTEN".to_owned(), address.to_string()));
        Process::start("waybill-console", &["serve"], &settings, &folder.path().join(name))
    };
    let (mut one, mut two) = (start(first, "one"), start(second, "two"));
    let token = fixture.issuer.operator(uuid::Uuid::now_v7(), &["view", "act"]);
    for n in 0..200 {
        Dead::new(&format!("k{}", n % 50)).at(n).produce(&fixture.topics).await;
    }
    let up = async |address: std::net::SocketAddr| {
        let client = reqwest::Client::builder().no_proxy().build().expect("client");
        let answer = client.get(format!("http://{address}/readyz")).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    };
    eventually(
        async || if up(first).await && up(second).await { Ok(()) } else { Err((one.log(), two.log())) },
    )
    .await;
    let get = async |address: std::net::SocketAddr, path: &str| {
        ask(&format!("http://{address}"), &token, reqwest::Method::GET, path, None).await.1
    };
    let post = async |address: std::net::SocketAddr, path: &str, body: &Value| {
        ask(&format!("http://{address}"), &token, reqwest::Method::POST, path, Some(body)).await.1
    };
    eventually(async || {
        let groups = get(first, "/v1/dlt/groups").await;
        if groups["groups"][0]["unsettled"] == 200 { Ok(()) } else { Err(groups) }
    })
    .await;
    let played = Played::start(&fixture.topics, |_| Does::Resolve);
    let plans = [
        post(first, "/v1/dlt/plans", &everything()).await,
        post(second, "/v1/dlt/plans", &everything()).await,
    ];
    let mut runs = Vec::new();
    for (address, plan) in [first, second].into_iter().zip(&plans) {
        let request = json!({"plan_id": plan["plan_id"], "rate": 40, "canary": 1});
        runs.push(id(&post(address, "/v1/dlt/replays", &request).await["replay_id"]));
    }
    for (round, least) in [(1, 40), (2, 100)] {
        eventually(async || if played.got().len() >= least { Ok(()) } else { Err(played.got().len()) }).await;
        // Whoever drives it dies, and so does the other: nothing but the database remembers.
        one.kill().await;
        two.kill().await;
        (first, second) = (free_address(), free_address());
        (one, two) = (start(first, &format!("one-{round}")), start(second, &format!("two-{round}")));
    }
    let ended = eventually(async || {
        if !up(first).await {
            return Err(Value::Null);
        }
        let mut ended = Vec::new();
        for run in &runs {
            let run = get(first, &format!("/v1/dlt/replays/{run}")).await;
            if run["state"] == "running" {
                return Err(run);
            }
            ended.push(run);
        }
        Ok(ended)
    })
    .await;
    let sum =
        |name: &str| ended.iter().map(|run| run["progress"][name].as_i64().expect("count")).sum::<i64>();
    assert_eq!((sum("resolved"), sum("refused")), (200, 200), "{ended:?}");
    assert!(ended.iter().any(|run| run["takeovers"].as_i64() >= Some(2)), "{ended:?}");
    tokio::time::timeout(Duration::from_secs(1), async {
        while played.got().len() < 200 {
            tokio::task::yield_now().await
        }
    })
    .await
    .expect("each has come");
    assert_eq!((played.got().len(), played.twice()), (200, vec![]));
}
