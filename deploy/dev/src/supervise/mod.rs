//! The supervisor: a process in a session of its own that owns PostgreSQL, Kafka and the services.
//!
//! It speaks to the foreground by lines of JSON ([`events`]), ends when its standard input does (unless released
//! before), restarts what dies, keeps `status.json` true, and stops everything in order.

pub(crate) mod client;
pub(crate) mod events;
mod infra;
mod services;
mod stack;
mod unit;

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{BufRead, stdin},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::setsid;

use self::{
    events::{Event, send},
    stack::Stack,
};
use crate::{
    cli::{self, Only},
    layout::{State, Workspace},
    run::{Run, guard::Guard, procfs::Belongings, signals::Signals},
    status::Status,
    wait,
};

/// How long a start waits for the end of the last stack in the same folder.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// The hidden verb `supervise`.
pub(crate) fn main(workspace: &Workspace, args: &cli::Supervise) -> Result<ExitCode> {
    // Ctrl-C on the terminal is for the foreground, which then asks for an orderly stop.
    let _ = setsid();
    let signals = Signals::register()?;
    obey_stdin(signals.clone());
    match supervise(workspace, args, &signals) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("{error:#}");
            send(&Event::Failed { message: format!("{error:#}") });
            Ok(ExitCode::FAILURE)
        }
    }
}

fn supervise(workspace: &Workspace, args: &cli::Supervise, signals: &Signals) -> Result<()> {
    let state = workspace.state(args.space);
    state.create()?;
    let run = Run::current()?;
    let _lock = lock(&state)?;
    let guard = Guard::start(&run, Some(&state.dir))?;
    clear(&state);
    let mut stack = Stack::new(&state, run, signals.clone(), guard.pid());
    let result = begin(&mut stack, args.only).and_then(|()| watch(&mut stack, &guard));
    if let Err(error) = &result {
        // Before the stop, so that the step that failed is shown as the one that did.
        send(&Event::Failed { message: format!("{error:#}") });
    }
    stack.stop();
    guard.stop();
    result
}

fn begin(stack: &mut Stack, only: Only) -> Result<()> {
    stack.publish()?;
    infra::start(stack, only != Only::Postgres)?;
    if only == Only::All {
        services::start(stack)?;
    }
    stack.started()?;
    send(&Event::Ready);
    Ok(())
}

/// Until a signal: restarts what ends, and keeps the status true.
fn watch(stack: &mut Stack, guard: &Guard) -> Result<()> {
    let (sender, probes) = mpsc::channel();
    let targets = stack.probes();
    thread::spawn(move || {
        loop {
            for (index, probe) in &targets {
                if sender.send((*index, probe.answers())).is_err() {
                    return;
                }
            }
            wait::pause(Duration::from_secs(1));
        }
    });
    while !stack.signals.came() {
        // Nothing to probe means that the sender is gone at once: then only the pause is wanted.
        match probes.recv_timeout(Duration::from_millis(100)) {
            Ok((index, answers)) => stack.probed(index, answers),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => wait::pause(Duration::from_millis(100)),
        }
        stack.revive()?;
        stack.guard = guard.pid();
        stack.publish()?;
    }
    Ok(())
}

/// Raises the flag when the foreground is gone, unless it has said `release` before.
fn obey_stdin(signals: Signals) {
    thread::spawn(move || {
        let released = stdin().lock().lines().map_while(Result::ok).any(|line| line == "release");
        if !released {
            signals.raise();
        }
    });
}

/// The lock of a stack's folder, held until this process ends.
fn lock(state: &State) -> Result<File> {
    let path = state.lock();
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("opening {}", path.display()))?;
    let mut failure = None;
    let locked = wait::until(LOCK_PATIENCE, Duration::from_millis(50), || match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(error)) => {
            failure = Some(error);
            true
        }
    });
    if let Some(error) = failure {
        return Err(error).with_context(|| format!("locking {}", path.display()));
    }
    if !locked {
        let who = Status::running(&state.status()).and_then(|status| status.supervisor());
        let who = who.map(|(pid, _)| format!(" (supervisor {pid})")).unwrap_or_default();
        bail!("another `cargo dev` is starting or running a stack in {}{who}", state.dir.display());
    }
    Ok(file)
}

/// Removes what a killed run may have left; the lock says that nobody else owns it.
fn clear(state: &State) {
    let left = Status::read(&state.status());
    let run = left.map(|status| status.run).unwrap_or_default();
    Belongings { run, cluster: Some(state.postgres().join("data")) }.sweep();
    let _ = std::fs::remove_file(state.status());
}
