//! The foreground: a run with its guard, and programs that the user watches.

use std::{
    ffi::OsStr,
    path::Path,
    process::{Child, Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::{
    Run,
    guard::Guard,
    procfs::{self, Belongings},
    signals::Signals,
};
use crate::{
    layout::{State, Workspace},
    services::leading,
    wait,
};

/// Everything a foreground verb starts, it starts through this.
#[derive(Debug)]
pub(crate) struct Session {
    /// The mark of all that is started.
    pub(crate) run: Run,
    /// Ctrl-C and its like.
    pub(crate) signals: Signals,
    workspace: Workspace,
    guard: Guard,
}

impl Session {
    /// Starts a run and its guard.
    pub(crate) fn begin(state: &State) -> Result<Self> {
        state.create()?;
        let run = Run::begin();
        let signals = Signals::register()?;
        let guard = Guard::start(&run, None)?;
        Ok(Self { run, signals, workspace: state.workspace.clone(), guard })
    }

    /// A program at the root of the checkout, with the terminal of this process.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = self.run.program(program)?;
        // Whoever wants a server is told which; the shell may hold another project's.
        for name in leading() {
            command.env_remove(name);
        }
        command.current_dir(&self.workspace.root);
        Ok(command)
    }

    /// Cargo, with nothing of the cargo that may have started this tool.
    pub(crate) fn cargo(&self) -> Result<Command> {
        let mut command = self.program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))?;
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_cargo_run(name)) {
            // Build scripts that watch these variables would otherwise run again on every change of caller.
            command.env_remove(name);
        }
        // Queries are checked against the cache: the databases that are given to tests and services hold no tables
        // of all of them. Only `prepare` says otherwise.
        command.env("SQLX_OFFLINE", "true");
        Ok(command)
    }

    /// Runs a program to its end. A signal to this process is passed on, and is an error.
    pub(crate) fn run(&self, command: &mut Command) -> Result<ExitStatus> {
        let mut child = command.spawn().with_context(|| format!("starting {}", name(command)))?;
        loop {
            if let Some(status) = child.try_wait().context("waiting for a program")? {
                if self.signals.came() {
                    bail!("interrupted");
                }
                return Ok(status);
            }
            if self.signals.came() {
                stop(&mut child);
                bail!("interrupted");
            }
            wait::pause(Duration::from_millis(50));
        }
    }

    /// Runs a program that must succeed.
    pub(crate) fn must(&self, command: &mut Command) -> Result<()> {
        let status = self.run(command)?;
        if !status.success() {
            bail!("{} failed ({status})", name(command));
        }
        Ok(())
    }

    /// Ends the run and everything in it.
    pub(crate) fn end(self) {
        Belongings { run: self.run.id.clone(), cluster: None }.sweep();
        self.guard.stop();
    }

    /// Ends the foreground and leaves the supervisor, which has a guard of its own, in charge.
    pub(crate) fn leave(self) {
        self.guard.stop();
    }
}

fn stop(child: &mut Child) {
    procfs::signal(child.id() as i32, Signal::TERM);
    let ended = || matches!(child.try_wait(), Ok(Some(_)));
    if !wait::until(Duration::from_secs(5), Duration::from_millis(50), ended) {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The program behind the `exec` wrapper, without its folder, and its first argument.
fn name(command: &Command) -> String {
    let mut words = command.get_args().skip_while(|arg| *arg != "--").skip(1);
    let program = words.next().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    [Some(program), words.next()]
        .into_iter()
        .flatten()
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

fn is_of_cargo_run(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}
