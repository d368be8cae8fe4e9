//! `ci`: what continuous integration runs, with the time of each step.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};

use super::{check, prepare, setup, test};
use crate::{cli, layout::Workspace, ui};

/// Runs all steps and stops at the first that fails.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode> {
    let tests = cli::Test { suite: None, args: Vec::new() };
    let done = |result: Result<()>| result.map(|()| ExitCode::SUCCESS);
    let steps: [(&str, &dyn Fn() -> Result<ExitCode>); 4] = [
        ("setup", &|| done(setup::run(workspace))),
        ("check", &|| done(check::run(workspace))),
        ("prepare --check", &|| prepare::run(workspace, true)),
        ("test", &|| test::run(workspace, &tests)),
    ];
    let mut times: Vec<(&str, Duration, bool)> = Vec::new();
    let mut failure = None;
    for (name, step) in steps {
        ui::heading(&format!("ci: {name}"));
        let began = Instant::now();
        let result = step();
        let failed = !matches!(&result, Ok(code) if *code == ExitCode::SUCCESS);
        times.push((name, began.elapsed(), !failed));
        if failed {
            failure = Some(result.err().unwrap_or_else(|| anyhow!("{name} failed")));
            break;
        }
    }
    eprintln!("{}", table(&times));
    failure.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn table(times: &[(&str, Duration, bool)]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(["step", "time", "result"]);
    for (name, time, succeeded) in times {
        table.add_row([
            (*name).to_owned(),
            ui::seconds(*time),
            if *succeeded { "ok" } else { "failed" }.to_owned(),
        ]);
    }
    let total = times.iter().map(|(_, time, _)| *time).sum();
    table.add_row(["all".to_owned(), ui::seconds(total), String::new()]);
    table
}
