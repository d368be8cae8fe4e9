//! Who may do what, and who sees what.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use uuid::Uuid;
use waybill_testkit::eventually;

use crate::fixture::{Dead, Fixture, id};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_seeing_payloads_and_acting_are_three_roles() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let dead = Dead::new("k");
    dead.produce(&fixture.topics).await;
    let item = id(&console.letter(&dead).await["item_id"]);
    let issuer = &fixture.issuer;
    let who = Uuid::now_v7();
    let ask = async |token: &str, method: Method, path: &str, body: &serde_json::Value| {
        let body = (method == Method::POST).then_some(body);
        console.ask_as(token, method, path, body).await
    };
    let letter = format!("/v1/dlt/items/{item}");
    let none = json!({});
    let view = issuer.token(who, "operator");
    for (token, status) in
        [("", 401), ("x", 401), (issuer.token(who, "customer").as_str(), 403), (view.as_str(), 200)]
    {
        assert_eq!(ask(token, Method::GET, &letter, &none).await.0.as_u16(), status);
    }
    // The value is masked for those who only look, and not even in the answer.
    let (_, masked) = ask(&view, Method::GET, &letter, &none).await;
    assert_eq!(
        masked["payload"],
        json!({"kind": "bytes", "bytes": dead.value.as_ref().map(Vec::len), "masked": true})
    );
    let payload = issuer.operator(who, &["payload"]);
    let (_, seen) = ask(&payload, Method::GET, &letter, &none).await;
    assert!(seen["payload"]["decoded"].is_object() && seen["payload"]["masked"] == false);
    let act = issuer.operator(who, &["act"]);
    for token in [&view, &payload] {
        for path in [
            "/v1/dlt/plans",
            "/v1/dlt/archive",
            "/v1/dlt/restore",
            "/v1/keys/release",
            "/v1/consumers/resume",
            &format!("/v1/tasks/{who}/retry"),
            &format!("/v1/dlt/replays/{who}/cancel"),
        ] {
            let body = json!({"topic": "orders.v1", "group": "point", "key": "k"});
            let body = if path.contains("keys") {
                body
            } else if path.contains("consumers") {
                json!({"topic": "orders.v1", "group": "point"})
            } else if path.contains("dlt/replays") || path.contains("tasks") {
                none.clone()
            } else {
                json!({"all": true})
            };
            let (status, answer) = ask(token, Method::POST, path, &body).await;
            assert_eq!((status.as_u16(), &answer["code"]), (403, &json!("forbidden")), "{path} {answer}");
        }
    }
    assert_eq!(ask(&view, Method::GET, "/v1/dlt/export?payload=true", &none).await.0.as_u16(), 403);
    assert_eq!(ask(&act, Method::POST, "/v1/dlt/plans", &json!({"all": true})).await.0.as_u16(), 200);
    let (_, masked) = ask(&act, Method::GET, &letter, &none).await;
    assert_eq!(masked["payload"]["masked"], true);
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_are_asked_in_the_operators_name() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let consumers = console.get("/v1/consumers").await;
    assert_eq!(consumers["services"][0]["list"][0]["replay_safety"], "safe");
    let keys = console.get("/v1/keys?topic=orders.v1").await;
    assert_eq!(keys["services"][0]["list"][0]["state"], "blocked");
    let key = |key: &str| json!({"topic": "orders.v1", "group": "point", "key": key});
    assert_eq!(console.post("/v1/keys/release", &key("k-1")).await["released"], true);
    assert_eq!(console.post("/v1/keys/release", &key("k-2")).await["released"], false);
    let wrong = json!({"topic": "orders.v1", "group": "nobody"});
    assert_eq!(console.refused("/v1/consumers/resume", &wrong).await, (422, "unknown-name".into()));
    let right = json!({"topic": "orders.v1", "group": "point"});
    assert_eq!(console.post("/v1/consumers/resume", &right).await["resumed"], true);
    let (known, unknown) = (Uuid::now_v7(), Uuid::now_v7());
    fixture.services.set(|services| {
        services.tasks.insert(known, "failed");
    });
    assert_eq!(console.get("/v1/tasks?status=failed").await["services"][0]["list"][0]["status"], "failed");
    assert_eq!(console.post(&format!("/v1/tasks/{known}/retry"), &json!({})).await["verdict"], "retried");
    assert_eq!(console.post(&format!("/v1/tasks/{known}/cancel"), &json!({})).await["verdict"], "refused");
    assert_eq!(console.post(&format!("/v1/tasks/{unknown}/retry"), &json!({})).await["verdict"], "unknown");
    let acts = console.get("/v1/audit").await;
    let verbs: Vec<_> =
        acts["acts"].as_array().expect("acts").iter().map(|act| act["verb"].clone()).collect();
    let of = ["task_retry", "task_cancel", "task_retry", "resume", "release", "release"];
    let expected: Vec<_> =
        of.iter().flat_map(|verb| [format!("{verb}_finished"), (*verb).to_owned()]).collect();
    assert_eq!(verbs, expected);
    let said = |act: &serde_json::Value| act["counts"]["said"]["point"].clone();
    assert_eq!(
        (said(&acts["acts"][0]), said(&acts["acts"][4])),
        (json!({"verdict": "unknown"}), json!({"verdict": "retried"}))
    );
    // One that does not answer is shown as such, and hides no other.
    fixture.services.stop();
    fixture.services.set(|services| services.status = Some(axum::http::StatusCode::INTERNAL_SERVER_ERROR));
    let consumers = console.get("/v1/consumers").await;
    assert!(consumers["services"][0]["error"].is_string(), "{consumers}");
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_of_a_service_is_in_the_audit_before_it_and_after_it_whoever_waits_for_it() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let release = json!({"topic": "orders.v1", "group": "point", "key": "k-1"});
    let done = || fixture.services.known.lock().expect("not poisoned").acts.len();
    // The client goes away in the middle of it.
    fixture.services.set(|services| services.slow = Duration::from_secs(1));
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_millis(300)).build();
    let asked = client.expect("client").post(format!("{}/v1/keys/release", console.url()));
    let gone = asked.bearer_auth(&console.token).json(&release).send().await;
    assert!(gone.is_err_and(|error| error.is_timeout()));
    let acts = console.get("/v1/audit").await;
    assert_eq!(
        (&acts["acts"][0]["verb"], &acts["acts"][0]["filter"]["key"]),
        (&json!("release"), &json!("k-1"))
    );
    let intent = acts["acts"][0]["audit_id"].clone();
    let finished = eventually(async || {
        let acts = console.get("/v1/audit?verb=release_finished").await;
        acts["acts"].get(0).cloned().ok_or(acts)
    })
    .await;
    assert_eq!(finished["counts"], json!({"act": intent, "said": {"point": {"released": true}}}));
    assert_eq!(done(), 1);
    // What cannot be written down is not done.
    fixture.services.set(|services| services.slow = Duration::ZERO);
    let rename = async |statement: &'static str| {
        sqlx::query(statement).execute(&fixture.database.pool).await.expect("renamed");
    };
    rename("alter table console.audit rename to audit_away").await;
    let resume = json!({"topic": "orders.v1", "group": "point"});
    assert!(console.refused("/v1/keys/release", &release).await.0 >= 500);
    assert!(console.refused("/v1/consumers/resume", &resume).await.0 >= 500);
    rename("alter table console.audit_away rename to audit").await;
    assert_eq!(done(), 1);
    // A fault of the service is written down as well.
    fixture.services.set(|services| services.failing = true);
    assert_eq!(console.refused("/v1/keys/release", &release).await, (502, "service-refused".into()));
    let acts = console.get("/v1/audit?verb=release_finished").await;
    assert!(acts["acts"][0]["counts"]["said"]["point"]["fault"].is_string(), "{acts}");
    console.stop().await;
}
