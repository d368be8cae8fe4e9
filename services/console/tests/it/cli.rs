//! The command line: what it prints, and what its exit code says.

use serde_json::{Value, json};
use tokio::process::Command;
use waybill_testkit::process::{binaries, free_address};

use crate::consumer::{Does, Played};
use crate::fixture::{Console, DLT, Dead, Fixture};

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }
}

async fn run(url: &str, token: &str, line: &str) -> Ran {
    let binary = binaries().join("waybill-console");
    assert!(binary.exists(), "{} is not built: run `cargo dev test`", binary.display());
    let mut command = Command::new(binary);
    command.env_clear().env("WAYBILL_CONSOLE_URL", url).args(line.split(' '));
    if !token.is_empty() {
        command.env("WAYBILL_TOKEN", token);
    }
    let output = command.output().await.expect("runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

async fn ask(console: &Console, line: &str) -> Ran {
    run(&console.url(), &console.token, line).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_answers_as_a_table_and_as_json() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let dead = Dead::new("order-7");
    dead.produce(&fixture.topics).await;
    let item = console.letter(&dead).await["item_id"].as_str().expect("id").to_owned();
    for line in [
        "dlt list --topic orders.v1".to_owned(),
        "dlt groups".to_owned(),
        "dlt stats".to_owned(),
        format!("dlt show {item}"),
        "dlt plan --key order-7".to_owned(),
        "dlt loops".to_owned(),
        "dlt replays".to_owned(),
        "keys list".to_owned(),
        "tasks list".to_owned(),
        "consumers list".to_owned(),
        "audit".to_owned(),
    ] {
        let table = ask(&console, &line).await;
        assert_eq!(table.code, Some(0), "{line}: {}", table.err);
        assert!(!table.out.is_empty(), "{line}");
        let as_json = ask(&console, &format!("{line} --json")).await;
        assert_eq!(as_json.code, Some(0), "{line}: {}", as_json.err);
        assert!(as_json.json().is_object(), "{line}");
    }
    assert!(ask(&console, "dlt list").await.out.contains("order-7"));
    let line = ask(&console, "dlt export --payload").await.json();
    assert!(line["value_base64"].is_string() && line["headers"].is_array(), "{line}");
    let key = "--topic orders.v1 --group point --key";
    assert_eq!(ask(&console, &format!("keys release {key} k-1")).await.code, Some(0));
    assert_eq!(ask(&console, &format!("keys release {key} k-2")).await.code, Some(1));
    assert_eq!(ask(&console, "consumers resume --topic orders.v1 --group point").await.code, Some(0));
    assert_eq!(ask(&console, &format!("tasks retry {item}")).await.code, Some(1));
    let away = ask(&console, &format!("dlt archive --id {item} --reason known --json")).await;
    assert_eq!((away.code, away.json()), (Some(0), json!({"changed": 1, "left": 0})));
    assert_eq!(ask(&console, &format!("dlt archive --id {item} --reason known")).await.code, Some(1));
    assert_eq!(ask(&console, &format!("dlt restore --id {item} --reason again")).await.code, Some(0));
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exit_code_of_a_replay_says_whether_all_went_well() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let (good, bad) = (Dead::new("good"), Dead::new("bad"));
    for dead in [&good, &bad] {
        dead.produce(&fixture.topics).await;
    }
    console.letters(2).await;
    let fails = bad.message_id;
    let _played =
        Played::start(
            &fixture.topics,
            move |got| {
                if got.message_id == fails { Does::FailAgain } else { Does::Resolve }
            },
        );
    let well = ask(&console, "dlt replay --key good --json").await;
    assert_eq!(
        (well.code, &well.json()["replay"]["progress"]["resolved"]),
        (Some(0), &json!(1)),
        "{}",
        well.err
    );
    let failed = ask(&console, &format!("dlt replay --topic {DLT}")).await;
    assert_eq!(failed.code, Some(1), "{}", failed.out);
    assert!(failed.out.contains("failed_again"), "{}", failed.out);
    // Nothing narrows it: both words are needed.
    for line in ["dlt replay", "dlt replay --all", "dlt replay --state open --yes"] {
        assert_eq!(ask(&console, line).await.code, Some(2), "{line}");
    }
    let all = ask(&console, "dlt replay --all --yes --json").await;
    assert_eq!((all.code, &all.json()["plan"]["ready"]), (Some(1), &json!(1)), "{}", all.err);
    let plan = ask(&console, "dlt plan --key bad --json").await.json();
    let by_plan = format!("dlt replay --plan {} --no-wait --json", plan["plan_id"].as_str().expect("id"));
    assert_eq!(ask(&console, &by_plan).await.code, Some(0));
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_use_and_a_console_that_is_not_there_have_codes_of_their_own() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    for (line, code) in [
        ("dlt list --colour red", 2),
        ("dlt list --topic nowhere.v1", 2),
        ("dlt list --since yesterday", 2),
        ("dlt show 0199f2a4-7c2e-7b7e-8a55-6f1d2c3b4a59", 2),
        ("dlt", 2),
    ] {
        let ran = ask(&console, line).await;
        assert_eq!(ran.code, Some(code), "{line}: {}", ran.err);
        assert!(!ran.err.is_empty(), "{line}");
    }
    assert_eq!(run(&console.url(), "", "dlt stats").await.code, Some(2));
    let customer = fixture.issuer.token(uuid::Uuid::now_v7(), "customer");
    assert_eq!(run(&console.url(), &customer, "dlt stats").await.code, Some(1));
    let nowhere = format!("http://{}", free_address());
    let ran = run(&nowhere, &console.token, "dlt stats").await;
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(!ran.err.contains(&console.token), "a secret is printed");
    console.stop().await;
}
