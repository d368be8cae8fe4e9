//! `dlt replay`: plan, start, watch until the outcomes are there.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::args::Replay;
use super::client::{Client, Failure};
use super::table::{self, list, text};
use crate::plans::Skip;

/// Of a plan, the letters that it took.
const TAKEN: [&str; 2] = ["ready", "skipped"];
/// Between two looks.
const LOOK: Duration = Duration::from_millis(300);
/// Failed looks in a row that are forgiven: a console restarts.
const PATIENCE: u32 = 100;

/// Does it; false when a record was not handled.
pub(super) async fn run(client: &Client, replay: &Replay) -> Result<bool, Failure> {
    let plan = match replay.plan {
        Some(id) => client.get(&format!("/v1/dlt/plans/{id}"), &[]).await?,
        None if replay.selected.is_bare() && !(replay.selected.all && replay.yes) => {
            let text = "nothing narrows the selection: give a filter or ids, or --all --yes";
            return Err(Failure::Usage(text.to_owned()));
        }
        None => client.post("/v1/dlt/plans", &replay.selected.body()).await?,
    };
    if !client.json {
        show_plan(&plan);
    }
    if plan["ready"] == 0 {
        if client.json {
            table::json(&json!({"plan": plan, "replay": null}));
        }
        return Ok(remaining(&plan) == 0);
    }
    let request = json!({
        "plan_id": plan["plan_id"],
        "rate": replay.rate,
        "canary": replay.canary,
        "stop_after_failures": replay.stop_after_failures,
        "acknowledge_reconcile": replay.acknowledge_reconcile,
    });
    let mut run = client.post("/v1/dlt/replays", &request).await?;
    if !replay.no_wait {
        run = watch(client, &text(&run, "replay_id")).await?;
    }
    if client.json {
        table::json(&json!({"plan": plan, "replay": run}));
    } else {
        show_run(&run);
    }
    let count = |name: &str| run["progress"][name].as_i64().unwrap_or(0);
    let bad = ["failed_again", "failed", "refused", "stopped", "no_outcome"].map(count).iter().sum::<i64>();
    let bad = bad - count("refused_settled") + remaining(&plan);
    Ok(bad == 0 && (replay.no_wait || run["state"] == "done"))
}

/// Letters that the plan leaves as they are though something is left to do with them; those beyond a limit only where
/// nobody has set it.
fn remaining(plan: &Value) -> i64 {
    let settled = [Skip::Resolved, Skip::AlreadyProcessed, Skip::Archived].map(Skip::name);
    let reasons = list(plan, "targets").iter().filter_map(|target| target["skipped"].as_object()).flatten();
    let open = reasons.filter(|(reason, _)| !settled.contains(&reason.as_str()));
    let beyond = if plan["request"]["limit"].is_null() { table::beyond(plan, TAKEN) } else { 0 };
    open.filter_map(|(_, count)| count.as_i64()).sum::<i64>() + beyond
}

/// Until the run has ended. The bar is on stderr, and only on a terminal.
async fn watch(client: &Client, id: &str) -> Result<Value, Failure> {
    let bar = if client.json { ProgressBar::hidden() } else { ProgressBar::new(0) };
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {per_sec} {msg}") {
        bar.set_style(style);
    }
    let mut failed = 0;
    loop {
        let run = match client.get(&format!("/v1/dlt/replays/{id}"), &[]).await {
            Ok(run) => run,
            Err(Failure::Unreachable(_)) if failed < PATIENCE => {
                failed += 1;
                bar.set_message("the console does not answer; the run goes on");
                tokio::time::sleep(LOOK).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        failed = 0;
        let count = |name: &str| run["progress"][name].as_u64().unwrap_or(0);
        let all = [
            "pending",
            "sending",
            "sent",
            "resolved",
            "failed_again",
            "already_processed",
            "failed",
            "refused",
        ];
        let all = all.map(count).iter().sum::<u64>() + count("stopped") + count("no_outcome");
        let left = count("pending") + count("sending") + count("sent");
        bar.set_length(all);
        bar.set_position(all - left);
        bar.set_message(format!(
            "resolved {}, failed again {}, waiting {}",
            count("resolved"),
            count("failed_again"),
            count("sent"),
        ));
        if run["state"] != "running" {
            bar.finish_and_clear();
            return Ok(run);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A plan for people.
pub(super) fn show_plan(plan: &Value) {
    println!(
        "plan {}: {} to send, {} left out",
        text(plan, "plan_id"),
        text(plan, "ready"),
        text(plan, "skipped")
    );
    let beyond = table::beyond(plan, TAKEN);
    if beyond > 0 {
        println!("{beyond} more match and are not in the plan: raise --limit, or do it again");
    }
    let row = |target: &Value| {
        let skipped = target["skipped"].as_object().into_iter().flatten();
        let skipped: Vec<_> = skipped.map(|(reason, count)| format!("{reason} {count}")).collect();
        let span = match (target["first_key"].as_str(), target["last_key"].as_str()) {
            (Some(first), Some(last)) => format!("{first} … {last}"),
            _ => String::new(),
        };
        [
            text(target, "target_topic"),
            text(target, "replay_safety"),
            text(target, "order"),
            text(target, "ready"),
            text(target, "keys"),
            span,
            skipped.join(", "),
        ]
    };
    let headings = ["to", "safety", "order", "send", "keys", "from … to", "left out"];
    table::print(headings, list(plan, "targets").iter().map(row));
}

/// A run for people.
pub(super) fn show_run(run: &Value) {
    let reason = text(run, "reason");
    let reason = if reason.is_empty() { reason } else { format!(": {reason}") };
    println!("replay {} is {}{reason}", text(run, "replay_id"), text(run, "state"));
    let counts = run["progress"].as_object().into_iter().flatten().filter(|(_, count)| **count != json!(0));
    table::print(["letters", "count"], counts.map(|(name, count)| [name.clone(), count.to_string()]));
    let troubles = list(run, "troubles");
    if !troubles.is_empty() {
        let row = |letter: &Value| [text(letter, "item_id"), text(letter, "state"), text(letter, "detail")];
        table::print(["item", "state", "why"], troubles.iter().map(row));
    }
}
