//! The verbs.

mod build;
mod check;
mod ci;
mod demo;
mod logs;
mod prepare;
mod promtool;
mod setup;
mod test;
mod token;
mod up;

use std::process::{ExitCode, ExitStatus};

use anyhow::Result;

use crate::{
    cli::{Cli, Verb},
    layout::Workspace,
    run, supervise,
};

/// Does what the command line says.
pub(crate) fn dispatch(cli: Cli) -> Result<ExitCode> {
    // These two know all they need from their arguments.
    match &cli.verb {
        Verb::Exec(args) => {
            return run::exec::become_program(args.parent, &args.command).map(|()| ExitCode::SUCCESS);
        }
        Verb::Guard(args) => return run::guard::watch(args).map(|()| ExitCode::SUCCESS),
        _ => {}
    }
    let workspace = Workspace::find(cli.root)?;
    let done = |result: Result<()>| result.map(|()| ExitCode::SUCCESS);
    match cli.verb {
        Verb::Setup => done(setup::run(&workspace)),
        Verb::Up(args) if args.foreground => done(up::foreground(&workspace, args.only)),
        Verb::Up(args) => done(up::up(&workspace, args.only)),
        Verb::Down => done(up::down(&workspace)),
        Verb::Status { json } => up::status(&workspace, json),
        Verb::Logs(args) => done(logs::run(&workspace, &args)),
        Verb::Demo { keep } => demo::demo(&workspace, keep),
        Verb::Bench { args } => test::measure(&workspace, "bench", true, &args),
        Verb::Chaos { args } => test::measure(&workspace, "chaos", false, &args),
        Verb::Fuzz { args } => test::measure(&workspace, "fuzz", false, &args),
        Verb::Test(args) => test::run(&workspace, &args),
        Verb::Token(args) => token::token(&workspace, &args),
        Verb::Seed { args } => demo::seed(&workspace, &args),
        Verb::Prepare { check } => prepare::run(&workspace, check),
        Verb::Check => done(check::run(&workspace)),
        Verb::Ci => ci::run(&workspace),
        Verb::Supervise(args) => supervise::main(&workspace, &args),
        Verb::Exec(_) | Verb::Guard(_) => Ok(ExitCode::SUCCESS),
    }
}

/// A program's exit code as this tool's; a signal counts as failure.
fn code(status: ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
