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
    assert_eq!((away.code, away.json()), (Some(0), json!({"changed": 1, "left": 0, "matched": 1})));
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
async fn what_a_replay_leaves_open_is_not_all_well_and_what_is_settled_is() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let [good, done, away, unreadable] = ["good", "done", "away", "unreadable"].map(Dead::new);
    for dead in [&good, &done, &away] {
        dead.produce(&fixture.topics).await;
    }
    console.letters(3).await;
    fixture.services.set(|known| {
        known.done.insert(done.message_id);
        known.undecodable.insert(unreadable.message_id);
    });
    assert_eq!(ask(&console, "dlt archive --key away --reason known").await.code, Some(0));
    let _played = Played::start(&fixture.topics, |_| Does::Resolve);
    let mut ids = String::new();
    for dead in [&good, &done, &away] {
        let item = console.letter(dead).await;
        ids = format!("{ids} --id {}", item["item_id"].as_str().expect("id"));
    }
    let counts = |ran: &Ran| {
        let answer = ran.json();
        (answer["plan"]["ready"].clone(), answer["plan"]["skipped"].clone())
    };
    // One is sent and handled, the others need nothing any more.
    let well = ask(&console, &format!("dlt replay{ids} --json")).await;
    assert_eq!((well.code, counts(&well)), (Some(0), (json!(1), json!(2))), "{}", well.out);
    // Once more: nothing is sent, and nothing is left to do.
    let again = ask(&console, &format!("dlt replay{ids} --json")).await;
    assert_eq!((again.code, counts(&again)), (Some(0), (json!(0), json!(3))), "{}", again.out);
    // What is sent is handled, and what is left out stays open.
    let next = Dead::new("next");
    for dead in [&next, &unreadable] {
        dead.produce(&fixture.topics).await;
    }
    console.letters(5).await;
    let left = ask(&console, &format!("dlt replay --topic {DLT} --state open --json")).await;
    assert_eq!((left.code, counts(&left)), (Some(1), (json!(1), json!(2))), "{}", left.out);
    let none = ask(&console, "dlt replay --key unreadable").await;
    assert_eq!(none.code, Some(1), "{}", none.out);
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_beyond_a_limit_is_told_and_is_not_all_well_unless_the_limit_was_given() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    // The oldest can never be replayed: they use up nothing of the limit.
    for n in 0..3 {
        let looping = Dead { replay: Some((uuid::Uuid::now_v7(), 3)), ..Dead::new(&format!("looping{n}")) };
        looping.produce(&fixture.topics).await;
    }
    console.letters(3).await;
    for n in 0..102 {
        Dead::new(&format!("k{n}")).produce(&fixture.topics).await;
    }
    console.letters(105).await;
    let _played = Played::start(&fixture.topics, |_| Does::Resolve);
    let plan = ask(&console, "dlt plan --all --json").await.json();
    assert_eq!((&plan["ready"], &plan["skipped"], &plan["matched"]), (&json!(100), &json!(0), &json!(105)));
    let kept = console.get(&format!("/v1/dlt/plans/{}", plan["plan_id"].as_str().expect("id"))).await;
    assert_eq!(kept["matched"], 105);
    let given = ask(&console, "dlt replay --all --yes --limit 1").await;
    assert_eq!(given.code, Some(0), "{}", given.err);
    assert!(given.out.contains("104 more match"), "{}", given.out);
    let not_given = ask(&console, "dlt replay --all --yes --rate 500").await;
    assert_eq!(not_given.code, Some(1), "{}", not_given.err);
    assert!(not_given.out.contains("4 more match"), "{}", not_given.out);
    // One is left that can be sent, and three that cannot.
    let rest = ask(&console, "dlt replay --all --yes --json").await;
    assert_eq!((rest.code, rest.json()["plan"]["ready"].clone()), (Some(1), json!(1)), "{}", rest.err);

    for n in 0..98 {
        Dead::new(&format!("l{n}")).produce(&fixture.topics).await;
    }
    console.letters(203).await;
    let given = ask(&console, "dlt archive --all --limit 1 --reason known --json").await;
    assert_eq!((given.code, given.json()), (Some(0), json!({"changed": 1, "left": 0, "matched": 101})));
    let not_given = ask(&console, "dlt archive --all --reason known").await;
    assert_eq!(not_given.code, Some(0), "{}", not_given.out);
    let away = ask(&console, "dlt restore --all --reason again").await;
    assert_eq!(away.code, Some(1), "{}", away.err);
    assert!(away.out.contains("1 more match"), "{}", away.out);
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_services_say_that_there_is_more_and_a_key_is_released_as_it_is_listed() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    let tasks: Vec<_> = (0..3).map(|_| uuid::Uuid::now_v7()).collect();
    fixture.services.set(|services| services.tasks.extend(tasks.iter().map(|id| (*id, "failed"))));
    // Each page leads to the next, by what it prints.
    for (verb, pages) in [("keys list --limit 1", 2), ("tasks list --limit 1", 3)] {
        let mut line = verb.to_owned();
        for page in 1..=pages {
            let ran = ask(&console, &line).await;
            assert_eq!(ran.code, Some(0), "{line}: {}", ran.err);
            let more = ran.out.lines().find_map(|line| line.strip_prefix("there is more: "));
            assert_eq!(more.is_some(), page < pages, "{line}: {}", ran.out);
            line = format!("{verb} {}", more.unwrap_or_default());
        }
    }
    for line in ["keys list --after 1", "tasks list --before x"] {
        assert_eq!(ask(&console, line).await.code, Some(2), "{line}");
    }
    for path in ["/v1/keys?after=1", "/v1/tasks?before=x"] {
        let (status, answer) = console.ask_as(&console.token, reqwest::Method::GET, path, None).await;
        assert_eq!((status.as_u16(), &answer["code"]), (400, &json!("validation-failed")), "{path}");
    }
    // Every row can be released with what it shows.
    let keys = ask(&console, "keys list --json").await.json()["services"][0]["list"].clone();
    let table = ask(&console, "keys list").await.out;
    for key in keys.as_array().expect("keys") {
        let shown = |field: &str| key[field].as_str().expect("text");
        let row = table.lines().find(|line| line.contains(shown("key"))).expect("a row");
        let base64 = if row.contains(" base64 ") { " --base64" } else { "" };
        let keyless = if row.contains(" yes ") { " --keyless" } else { "" };
        let of = format!("--topic {} --group {} --key {}", shown("topic"), shown("group"), shown("key"));
        let ran = ask(&console, &format!("keys release {of}{base64}{keyless}")).await;
        assert_eq!(ran.code, Some(0), "{key}: {}", ran.out);
    }
    // A name that nobody knows is a mistake; a service that does not answer may know it.
    for line in
        ["keys list --topic typo", "keys list --group typo", "keys list --topic orders.v1 --group typo"]
    {
        let ran = ask(&console, line).await;
        assert_eq!(ran.code, Some(2), "{line}: {}", ran.out);
        assert!(ran.err.contains("typo"), "{}", ran.err);
    }
    fixture.services.set(|services| services.status = Some(reqwest::StatusCode::INTERNAL_SERVER_ERROR));
    assert_eq!(ask(&console, "keys list --topic typo").await.code, Some(1));
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_that_does_not_narrow_groups_is_refused_by_its_name() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    Dead::new("k").produce(&fixture.topics).await;
    console.letters(1).await;
    let id = uuid::Uuid::nil();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    for (option, value) in [
        ("key", "k"),
        ("message-id", id.to_string().as_str()),
        ("trace-id", trace),
        ("min-attempts", "1"),
        ("max-attempts", "9"),
    ] {
        let ran = ask(&console, &format!("dlt groups --{option} {value}")).await;
        assert_eq!(ran.code, Some(2), "{option}: {}", ran.out);
        assert!(ran.err.contains(&option.replace('-', "_")), "{option}: {}", ran.err);
    }
    for (option, value) in [
        ("topic", DLT),
        ("group", "point"),
        ("error-code", "unknown_customer"),
        ("error-class", "permanent"),
        ("event-type", "waybill.order.placed"),
        ("state", "open"),
        ("since", "2020-01-01T00:00:00Z"),
        ("until", "2099-01-01T00:00:00Z"),
    ] {
        let ran = ask(&console, &format!("dlt groups --{option} {value}")).await;
        assert_eq!(ran.code, Some(0), "{option}: {}", ran.err);
        assert!(ran.out.contains("unknown_customer"), "{option}: {}", ran.out);
    }
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
