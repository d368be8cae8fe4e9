//! The foreground's side of a supervisor.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::events::Event;
use crate::{cli::Only, layout::State, run::session::Session, status::Status, ui, wait};

/// A supervisor that this process started.
#[derive(Debug)]
pub(crate) struct Supervisor {
    child: Child,
    stdin: Option<ChildStdin>,
    events: Receiver<Event>,
    state: State,
}

impl Supervisor {
    /// Starts a stack and shows its progress until it is ready.
    pub(crate) fn start(session: &Session, state: &State, only: Only) -> Result<(Self, Status)> {
        state.create()?;
        let log = File::create(state.log("supervisor")).context("creating the supervisor's log")?;
        let mut command = session.run.tool()?;
        command.arg("--root").arg(&state.workspace.root).arg("supervise");
        command.args(["--only", &word(only), "--space", &word(state.space)]);
        command.current_dir(&state.workspace.root).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().context("starting the supervisor")?;
        let stdin = child.stdin.take();
        let events = receive(&mut child)?;
        let mut supervisor = Self { child, stdin, events, state: state.clone() };
        if let Err(error) = supervisor.wait_ready(session) {
            supervisor.stop();
            return Err(error);
        }
        let status = Status::running(&state.status()).context("the supervisor has ended")?;
        Ok((supervisor, status))
    }

    fn wait_ready(&mut self, session: &Session) -> Result<()> {
        let mut step: Option<ui::Step> = None;
        let result = loop {
            if session.signals.came() {
                break Err(anyhow::anyhow!("interrupted"));
            }
            match self.events.recv_timeout(Duration::from_millis(100)) {
                Ok(Event::Step { name }) => {
                    step.take().into_iter().for_each(ui::Step::done);
                    step = Some(ui::Step::begin(name));
                }
                Ok(Event::Ready) => break Ok(()),
                Ok(Event::Failed { message }) => break Err(anyhow::anyhow!(message)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break Err(self.ended()),
            }
        };
        let end = if result.is_ok() { ui::Step::done } else { ui::Step::failed };
        step.into_iter().for_each(end);
        result
    }

    fn ended(&self) -> anyhow::Error {
        anyhow::anyhow!("the supervisor has ended; see {}", self.state.log("supervisor").display())
    }

    /// Whether it still lives.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(self.ended()),
        }
    }

    /// Leaves it to itself: it goes on when this process ends.
    pub(crate) fn release(mut self) -> Result<()> {
        if let Some(stdin) = &mut self.stdin {
            writeln!(stdin, "release").context("releasing the supervisor")?;
        }
        self.check()
    }

    /// Asks for an orderly stop and waits for its end.
    pub(crate) fn stop(mut self) {
        drop(self.stdin.take());
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let step = ui::Step::begin("Stopping");
        let ended = || matches!(self.child.try_wait(), Ok(Some(_)) | Err(_));
        if wait::until(Duration::from_secs(120), Duration::from_millis(50), ended) {
            step.done();
        } else {
            // Its guard takes the rest.
            let _ = self.child.kill();
            let _ = self.child.wait();
            step.failed();
        }
    }
}

fn receive(child: &mut Child) -> Result<Receiver<Event>> {
    let Some(stdout) = child.stdout.take() else { bail!("the supervisor has no output") };
    let (sender, events) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let Ok(event) = serde_json::from_str(&line) else { continue };
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    Ok(events)
}

fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
