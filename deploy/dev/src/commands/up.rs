//! `up`, `down` and `status`.

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use rustix::process::Signal;

use super::{build, setup};
use crate::{
    cli::Only,
    infra::databases::{self, Server},
    layout::{Space, State, Workspace},
    run::{
        procfs::{self, Belongings},
        session::Session,
    },
    status::Status,
    supervise::client::Supervisor,
    ui, wait,
};

/// Longer than the supervisor needs when every service takes its whole time.
const DOWN_PATIENCE: Duration = Duration::from_secs(120);

/// Starts the stack in the background, or says that it runs.
pub(crate) fn up(workspace: &Workspace, only: Only) -> Result<()> {
    let state = workspace.state(Space::Dev);
    if let Some(status) = started(&state)? {
        ui::note("already up");
        println!("{}", status.table());
        return Ok(());
    }
    let session = Session::begin(&state)?;
    let result = start(&session, &state, only).and_then(|(supervisor, status)| {
        supervisor.release()?;
        Ok(status)
    });
    match result {
        Ok(status) => {
            session.leave();
            println!("{}", status.table());
            println!("stop it with: cargo dev down");
            Ok(())
        }
        Err(error) => {
            session.end();
            Err(error)
        }
    }
}

/// Starts the stack and stays until a signal or the supervisor's end.
pub(crate) fn foreground(workspace: &Workspace, only: Only) -> Result<()> {
    let state = workspace.state(Space::Dev);
    if started(&state)?.is_some() {
        bail!("already up; `cargo dev down` stops it");
    }
    let session = Session::begin(&state)?;
    let result = start(&session, &state, only).and_then(|(mut supervisor, status)| {
        println!("{}\nstop it with Ctrl-C", status.table());
        while !session.signals.came() {
            wait::pause(Duration::from_millis(100));
            supervisor.check()?;
        }
        supervisor.stop();
        Ok(())
    });
    session.end();
    result
}

/// Checks, builds and starts a stack whose owner is this process.
pub(crate) fn start(session: &Session, state: &State, only: Only) -> Result<(Supervisor, Status)> {
    let plan = setup::servers(session, &state.workspace, only, false)?;
    if only == Only::All {
        // Before the long build, although the supervisor, which makes them, looks again.
        if let Some(server) = Server::given(&state.workspace, &plan.given)? {
            server.check(&databases::SERVICES)?;
        }
        build::binaries(session)?;
        build::key(session, &state.workspace)?;
    }
    Supervisor::start(session, state, only)
}

/// The running stack, if there is one; an error while one is only half there.
pub(crate) fn started(state: &State) -> Result<Option<Status>> {
    match Status::running(&state.status()) {
        Some(status) if !status.started => {
            let (pid, _) = status.supervisor().unwrap_or_default();
            bail!(
                "another `cargo dev` is just starting this checkout's stack (supervisor {pid}); wait for it"
            )
        }
        other => Ok(other),
    }
}

/// The running stack with all services.
pub(crate) fn whole(state: &State) -> Result<Option<Status>> {
    match started(state)? {
        Some(status) if !status.processes.iter().any(|process| process.name == "order") => {
            bail!("only a part of the stack is up, without the services: `cargo dev down` first")
        }
        other => Ok(other),
    }
}

/// Stops the stack and waits for its end.
pub(crate) fn down(workspace: &Workspace) -> Result<()> {
    let state = workspace.state(Space::Dev);
    let Some(status) = Status::read(&state.status()) else {
        ui::note("nothing is up");
        return Ok(());
    };
    let step = ui::Step::begin("Stopping services, relay, Kafka and PostgreSQL");
    if let Some((pid, start)) = status.supervisor() {
        procfs::signal(pid, Signal::TERM);
        if !wait::until(DOWN_PATIENCE, Duration::from_millis(50), || !procfs::is_alive(pid, start)) {
            procfs::signal(pid, Signal::KILL);
        }
    }
    // The guard does the same at this moment if the supervisor was killed; twice does no harm.
    if !(Belongings { run: status.run, cluster: None }.sweep()) {
        step.failed();
        bail!("some processes could not be killed");
    }
    let _ = std::fs::remove_file(state.status());
    step.done();
    Ok(())
}

/// Prints what is up.
pub(crate) fn status(workspace: &Workspace, json: bool) -> Result<ExitCode> {
    match Status::running(&workspace.state(Space::Dev).status()) {
        Some(status) if json => print!("{}", status.json()?),
        Some(status) => println!("{}", status.table()),
        None => {
            eprintln!("not up; start it with: cargo dev up");
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}
