//! `dlt …`, but for `dlt replay`.

use std::io::Write as _;

use futures::TryStreamExt;
use serde_json::{Value, json};

use super::args::{Away, Dlt};
use super::client::{Client, Failure};
use super::replay;
use super::table::{self, age, list, text};

/// Does it; false when a record was refused.
pub(super) async fn run(client: Result<Client, Failure>, verb: Dlt) -> Result<bool, Failure> {
    let client = &client?;
    match verb {
        Dlt::List { filter, limit } => {
            let mut items = Vec::new();
            let mut cursor: Option<String> = None;
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            while items.len() < limit {
                let mut query = vec![("limit", (limit - items.len()).min(500).to_string())];
                query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
                let mut page = client.filtered("/v1/dlt/items", &filter, &query).await?;
                items.append(page["items"].as_array_mut().unwrap_or(&mut Vec::new()));
                cursor = page["next"].as_str().map(str::to_owned);
                if cursor.is_none() {
                    break;
                }
            }
            show_items(client, &json!({ "items": items, "next": cursor }));
        }
        Dlt::Groups { filter } => {
            show_groups(client, &client.filtered("/v1/dlt/groups", &filter, &[]).await?)
        }
        Dlt::Show { id } => show(client, &client.get(&format!("/v1/dlt/items/{id}"), &[]).await?),
        Dlt::Stats => show_topics(client, &client.get("/v1/dlt/topics", &[]).await?),
        Dlt::Plan(selected) => {
            let plan = client.post("/v1/dlt/plans", &selected.body()).await?;
            if client.json { table::json(&plan) } else { replay::show_plan(&plan) }
        }
        Dlt::Replay(replay) => return replay::run(client, &replay).await,
        Dlt::Replays { id: Some(id) } => {
            let run = client.get(&format!("/v1/dlt/replays/{id}"), &[]).await?;
            if client.json { table::json(&run) } else { replay::show_run(&run) }
        }
        Dlt::Replays { id: None } => show_runs(client, &client.get("/v1/dlt/replays", &[]).await?),
        Dlt::Cancel { id } => {
            let run = client.post(&format!("/v1/dlt/replays/{id}/cancel"), &json!({})).await?;
            if client.json { table::json(&run) } else { println!("it stops at its next record") }
        }
        Dlt::Archive(away) => return change(client, "/v1/dlt/archive", &away).await,
        Dlt::Restore(away) => return change(client, "/v1/dlt/restore", &away).await,
        Dlt::Export { filter, payload, limit } => {
            let mut query = vec![("payload", payload.to_string())];
            query.extend(limit.map(|limit| ("limit", limit.to_string())));
            let answer = client.stream("/v1/dlt/export", &filter, &query).await?;
            let broken = |error: &dyn std::error::Error| {
                Failure::Unreachable(format!("the export broke off: {error}"))
            };
            let mut lines = std::pin::pin!(answer.bytes_stream());
            while let Some(part) = lines.try_next().await.map_err(|error| broken(&error))? {
                std::io::stdout().write_all(&part).map_err(|error| broken(&error))?;
            }
        }
        Dlt::Loops => show_items(client, &client.get("/v1/dlt/loops", &[]).await?),
    }
    Ok(true)
}

async fn change(client: &Client, path: &str, away: &Away) -> Result<bool, Failure> {
    let mut body = away.selected.body();
    body["reason"] = json!(away.reason);
    let done = client.post(path, &body).await?;
    if client.json {
        table::json(&done);
    } else {
        println!("{} changed, {} left as they were", text(&done, "changed"), text(&done, "left"));
    }
    let beyond = table::beyond(&done, ["changed", "left"]);
    if !client.json && beyond > 0 {
        println!("{beyond} more match and were not touched: raise --limit, or do it again");
    }
    Ok(done["left"] == 0 && (beyond == 0 || away.selected.limit.is_some()))
}

fn show_items(client: &Client, page: &Value) {
    if client.json {
        return table::json(page);
    }
    let row = |item: &Value| {
        [
            text(item, "item_id"),
            text(item, "state"),
            text(item, "topic"),
            text(item, "key"),
            text(item, "event_type"),
            text(item, "error_code"),
            text(item, "attempts"),
            text(item, "replays"),
            text(item, "dead_at"),
        ]
    };
    let headings = ["item", "state", "topic", "key", "type", "error", "attempts", "replays", "died"];
    table::print(headings, list(page, "items").iter().map(row));
    if !page["next"].is_null() {
        println!("there is more: raise --limit");
    }
}

fn show_groups(client: &Client, groups: &Value) {
    if client.json {
        return table::json(groups);
    }
    let row = |group: &Value| {
        [
            text(group, "topic"),
            text(group, "consumer_group"),
            text(group, "error_code"),
            text(group, "error_class"),
            text(group, "event_type"),
            text(group, "unsettled"),
            text(group, "first_seen"),
            text(group, "last_seen"),
        ]
    };
    let headings = ["topic", "group", "error", "class", "type", "unsettled", "first", "last"];
    table::print(headings, list(groups, "groups").iter().map(row));
}

fn show_topics(client: &Client, topics: &Value) {
    if client.json {
        return table::json(topics);
    }
    let row = |topic: &Value| {
        [
            text(topic, "topic"),
            text(topic, "unsettled"),
            text(&topic["counts"], "sent"),
            text(&topic["counts"], "resolved"),
            text(topic, "arrived_last_hour"),
            text(topic, "arrived_last_day"),
            age(topic, "oldest_age_s"),
            age(topic, "deletes_in_s"),
            text(topic, "newest_error_code"),
        ]
    };
    let headings = [
        "topic",
        "unsettled",
        "sent",
        "resolved",
        "last hour",
        "last day",
        "oldest",
        "deleted in",
        "newest error",
    ];
    table::print(headings, list(topics, "topics").iter().map(row));
}

fn show_runs(client: &Client, runs: &Value) {
    if client.json {
        return table::json(runs);
    }
    let row = |run: &Value| {
        let progress = &run["progress"];
        [
            text(run, "replay_id"),
            text(run, "state"),
            text(run, "started_at"),
            text(progress, "resolved"),
            text(progress, "failed_again"),
            text(progress, "failed"),
            text(progress, "pending"),
            text(run, "reason"),
        ]
    };
    let headings = ["replay", "state", "started", "resolved", "failed again", "failed", "pending", "reason"];
    table::print(headings, list(runs, "replays").iter().map(row));
}

fn show(client: &Client, letter: &Value) {
    if client.json {
        return table::json(letter);
    }
    let fields = [
        "item_id",
        "state",
        "topic",
        "consumer_group",
        "source_topic",
        "message_id",
        "key",
        "event_type",
        "error_code",
        "error_class",
        "attempts",
        "deaths",
        "replays",
        "dead_at",
        "origin_partition",
        "origin_offset",
        "trace_id",
        "trace_url",
        "sent_at",
        "archived_reason",
    ];
    let known = fields.iter().filter(|field| !letter[**field].is_null());
    table::print(["field", "value"], known.map(|field| [(*field).to_owned(), text(letter, field)]));
    let value = |header: &Value| match header["encoding"].as_str() {
        Some("null") => "(null)".to_owned(),
        Some("unreadable") => "(unreadable)".to_owned(),
        Some("base64") => match header["number"].as_i64() {
            Some(number) => format!("{number} (binary)"),
            None => format!("base64:{}", text(header, "value")),
        },
        _ => text(header, "value"),
    };
    let headers = list(letter, "headers").iter().map(|header| [text(header, "name"), value(header)]);
    table::print(["header", "value"], headers);
    let death = |death: &Value| {
        let place =
            format!("{}[{}]@{}", text(death, "topic"), text(death, "partition"), text(death, "offset"));
        [
            text(death, "failed_at"),
            place,
            text(death, "error_code"),
            text(death, "error_message"),
            text(death, "replay_id"),
        ]
    };
    table::print(
        ["failed", "record", "error", "message", "in replay"],
        list(letter, "history").iter().map(death),
    );
    let payload = &letter["payload"];
    match (payload["masked"].as_bool(), &payload["decoded"]) {
        (Some(true), _) => {
            println!(
                "value: {}, {} bytes (masked: needs the role payload)",
                text(payload, "kind"),
                text(payload, "bytes")
            );
        }
        (_, Value::Null) => println!("value: {} {}", text(payload, "kind"), text(payload, "hex")),
        (_, decoded) => println!("value: {decoded:#}"),
    }
}
