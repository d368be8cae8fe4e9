//! `keys …`, `tasks …`, `consumers …` and `audit`.

use serde_json::{Value, json};

use super::args::{Audit, Consumers, Keys, Tasks};
use super::client::{Client, Failure};
use super::table::{self, list, text};

type Asked = Result<Client, Failure>;

pub(super) async fn keys(client: Asked, verb: Keys) -> Result<bool, Failure> {
    let client = client?;
    match verb {
        Keys::List { service, topic, group, limit, after } => {
            let limit = limit.map(|limit| limit.to_string());
            let query = query([
                ("service", service),
                ("topic", topic),
                ("group", group),
                ("limit", limit),
                ("after", after),
            ]);
            let answer = client.get("/v1/keys", &query).await?;
            let row = |service: &str, key: &Value| {
                [
                    service.to_owned(),
                    text(key, "topic"),
                    text(key, "group"),
                    text(key, "key"),
                    text(key, "key_encoding"),
                    (if key["keyless"] == true { "yes" } else { "" }).to_owned(),
                    text(key, "state"),
                    text(key, "attempts"),
                    text(key, "messages"),
                    text(key, "due_at"),
                ]
            };
            let headings = [
                "service", "topic", "group", "key", "encoding", "keyless", "state", "attempts", "messages",
                "due",
            ];
            Ok(show(&client, &answer, headings, row, "--after"))
        }
        Keys::Release { topic, group, key, base64, keyless } => {
            let key_encoding = if base64 { "base64" } else { "utf8" };
            let body = json!({
                "topic": topic, "group": group, "key": key, "key_encoding": key_encoding, "keyless": keyless,
            });
            let said = client.post("/v1/keys/release", &body).await?;
            Ok(verdict(&client, &said, said["released"] == true, "released", "there is no such blocked key"))
        }
    }
}

pub(super) async fn tasks(client: Asked, verb: Tasks) -> Result<bool, Failure> {
    let client = client?;
    let (id, act, service) = match verb {
        Tasks::List { service, status, kind, key, limit, before } => {
            let limit = limit.map(|limit| limit.to_string());
            let query = query([
                ("service", service),
                ("status", status),
                ("kind", kind),
                ("key", key),
                ("limit", limit),
                ("before", before),
            ]);
            let answer = client.get("/v1/tasks", &query).await?;
            let row = |service: &str, task: &Value| {
                [
                    service.to_owned(),
                    text(task, "id"),
                    text(task, "kind"),
                    text(task, "key"),
                    text(task, "status"),
                    text(task, "attempts"),
                    text(task, "created_at"),
                    text(task, "run_at"),
                    text(task, "last_error"),
                ]
            };
            let headings =
                ["service", "task", "kind", "key", "status", "attempts", "enqueued", "runs at", "last error"];
            return Ok(show(&client, &answer, headings, row, "--before"));
        }
        Tasks::Retry { id, service } => (id, "retry", service),
        Tasks::Cancel { id, service } => (id, "cancel", service),
    };
    let said = client.act(&format!("/v1/tasks/{id}/{act}"), &query([("service", service)])).await?;
    let good = matches!(said["verdict"].as_str(), Some("retried" | "cancelled" | "requested"));
    let word = text(&said, "verdict");
    Ok(verdict(&client, &said, good, &word, &word))
}

pub(super) async fn consumers(client: Asked, verb: Consumers) -> Result<bool, Failure> {
    let client = client?;
    match verb {
        Consumers::List => {
            let answer = client.get("/v1/consumers", &[]).await?;
            let row = |service: &str, subscription: &Value| {
                [
                    service.to_owned(),
                    text(subscription, "topic"),
                    text(subscription, "group"),
                    text(subscription, "order"),
                    text(subscription, "replay_safety"),
                    text(subscription, "breaker"),
                    text(subscription, "parked_keys"),
                    list(subscription, "blocked").len().to_string(),
                ]
            };
            let headings =
                ["service", "topic", "group", "order", "replay safety", "breaker", "parked keys", "blocked"];
            Ok(show(&client, &answer, headings, row, ""))
        }
        Consumers::Resume { topic, group } => {
            let body = json!({ "topic": topic, "group": group });
            let said = client.post("/v1/consumers/resume", &body).await?;
            Ok(verdict(&client, &said, said["resumed"] == true, "resumed", "it was not stopped"))
        }
    }
}

pub(super) async fn audit(client: Asked, wanted: &Audit) -> Result<bool, Failure> {
    let client = client?;
    if let Some(id) = wanted.id {
        let act = client.get(&format!("/v1/audit/{id}"), &[]).await?;
        if client.json {
            table::json(&act);
            return Ok(true);
        }
        println!(
            "{} {} by {}: {}",
            text(&act, "at"),
            text(&act, "verb"),
            text(&act, "subject"),
            act["counts"]
        );
        let row = |result: &Value| {
            [
                text(result, "item_id"),
                text(result, "message_id"),
                text(result, "result"),
                text(result, "detail"),
            ]
        };
        table::print(["item", "message", "result", "why"], list(&act, "results").iter().map(row));
        return Ok(true);
    }
    let subject = wanted.subject.map(|id| id.to_string());
    let limit = Some(wanted.limit.to_string());
    let query = query([("verb", wanted.verb.clone()), ("subject", subject), ("limit", limit)]);
    let acts = client.get("/v1/audit", &query).await?;
    if client.json {
        table::json(&acts);
        return Ok(true);
    }
    let row = |act: &Value| {
        [
            text(act, "audit_id"),
            text(act, "at"),
            text(act, "subject"),
            text(act, "verb"),
            text(act, "filter"),
            text(act, "counts"),
        ]
    };
    table::print(["act", "at", "who", "what", "of", "came of it"], list(&acts, "acts").iter().map(row));
    if !acts["next"].is_null() {
        println!("there is more: raise --limit");
    }
    Ok(true)
}

/// What services list, and with which cursor each goes on; false when one did not answer.
fn show<const N: usize>(
    client: &Client,
    answer: &Value,
    headings: [&str; N],
    row: impl Fn(&str, &Value) -> [String; N],
    cursor: &str,
) -> bool {
    let services = list(answer, "services");
    if client.json {
        table::json(answer);
    } else {
        let rows = services.iter().flat_map(|said| {
            let name = text(said, "service");
            list(said, "list").iter().map(|element| row(&name, element)).collect::<Vec<_>>()
        });
        table::print(headings, rows);
        for said in services.iter().filter(|said| !said["next"].is_null()) {
            let (service, next) = (text(said, "service"), text(said, "next"));
            println!("there is more: --service {service} {cursor} {next}");
        }
        services
            .iter()
            .filter(|said| !said["error"].is_null())
            .for_each(|said| eprintln!("{}", text(said, "error")));
    }
    services.iter().all(|said| said["error"].is_null())
}

fn verdict(client: &Client, said: &Value, good: bool, yes: &str, no: &str) -> bool {
    if client.json {
        table::json(said);
    } else {
        println!("{}", if good { yes } else { no });
    }
    good
}

fn query<const N: usize>(parts: [(&'static str, Option<String>); N]) -> Vec<(&'static str, String)> {
    parts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
