//! `demo` and `seed`: programs of the tests crate, run against the stack.

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{build, code, up};
use crate::{
    cli::Only,
    layout::{Space, State, Workspace},
    run::session::Session,
    ui,
};

/// Where these programs read the whole of the stack.
const STATUS: &str = "WAYBILL_STATUS";

/// Uses the running stack, else starts one and, without `keep`, stops it again.
pub(crate) fn demo(workspace: &Workspace, keep: bool) -> Result<ExitCode> {
    let state = workspace.state(Space::Dev);
    let running = up::whole(&state)?;
    let session = Session::begin(&state)?;
    let result = if let Some(status) = running {
        ui::note(&status.servers());
        build::binaries(&session).and_then(|()| program(&session, &state, "demo", &[]))
    } else {
        own(&session, &state, keep)
    };
    session.end();
    result
}

fn own(session: &Session, state: &State, keep: bool) -> Result<ExitCode> {
    if keep {
        // Its supervisor is in a run of its own, which this one's end leaves alone.
        up::up(&state.workspace, Only::All)?;
        let code = program(session, state, "demo", &[]);
        ui::note("the stack is up; stop it with: cargo dev down");
        return code;
    }
    let (mut supervisor, _) = up::start(session, state, Only::All)?;
    let code = program(session, state, "demo", &[]);
    supervisor.check()?;
    supervisor.stop();
    code
}

/// Fills the running stack.
pub(crate) fn seed(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    let state = workspace.state(Space::Dev);
    let Some(status) = up::whole(&state)? else { bail!("not up; start it with: cargo dev up") };
    ui::note(&status.servers());
    let session = Session::begin(&state)?;
    let result = program(&session, &state, "seed", args);
    session.end();
    result
}

fn program(session: &Session, state: &State, name: &str, args: &[String]) -> Result<ExitCode> {
    let mut command = session.program(state.workspace.binary(name)?)?;
    session.run(command.args(args).env(STATUS, state.status())).map(code)
}
