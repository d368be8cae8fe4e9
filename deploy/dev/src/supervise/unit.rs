//! One long-running process of the stack: started, probed, started again, stopped.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::{
    infra::{kafka, postgres},
    layout::State,
    run::{Run, procfs},
    services, wait,
};

/// The first pause before a restart; it doubles up to [`LONGEST_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// Whoever has lived this long starts with the first pause again.
const HEALTHY: Duration = Duration::from_secs(30);

/// How it is seen that a process is ready.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Probe {
    Postgres(u16),
    Kafka(u16),
    Http(u16),
}

impl Probe {
    /// Asks once; takes at most a few seconds.
    pub(crate) fn answers(self) -> bool {
        match self {
            Self::Postgres(port) => postgres::answers(port),
            Self::Kafka(port) => kafka::answers(port),
            Self::Http(port) => services::is_ready(port),
        }
    }
}

/// What is to run.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) command: Vec<OsString>,
    pub(crate) env: Vec<(&'static str, OsString)>,
    pub(crate) probe: Probe,
    /// Stopped in the order of these numbers.
    pub(crate) phase: u8,
    /// Asks for an orderly end …
    pub(crate) stop: Signal,
    /// … which may take this long.
    pub(crate) patience: Duration,
    /// The port of the API; the metrics' is derived.
    pub(crate) http: Option<u16>,
}

/// What runs.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) spec: Spec,
    pub(crate) ready: bool,
    pub(crate) restarts: u32,
    child: Option<Child>,
    began: Instant,
    backoff: Duration,
}

impl Unit {
    /// Starts it for the first time, with an empty log.
    pub(crate) fn start(spec: Spec, run: &Run, state: &State) -> Result<Self> {
        keep_old(&state.log(spec.name));
        let child = spawn(&spec, run, state)?;
        Ok(Self {
            spec,
            ready: false,
            restarts: 0,
            child: Some(child),
            began: Instant::now(),
            backoff: FIRST_BACKOFF,
        })
    }

    /// The pid while it lives.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.child.as_ref().map(|child| child.id() as i32)
    }

    /// How it ended, once.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        self.ready = false;
        self.backoff = if self.began.elapsed() > HEALTHY {
            FIRST_BACKOFF
        } else {
            (self.backoff * 2).min(LONGEST_BACKOFF)
        };
        // From now on `began` is the end, from which the pause counts.
        self.began = Instant::now();
        Some(status)
    }

    /// Starts it again if it has ended and its pause is over.
    pub(crate) fn revive(&mut self, run: &Run, state: &State) -> Result<()> {
        if self.child.is_none() && self.began.elapsed() >= self.backoff {
            self.child = Some(spawn(&self.spec, run, state)?);
            self.began = Instant::now();
            self.restarts += 1;
        }
        Ok(())
    }

    /// Asks for an orderly end.
    pub(crate) fn ask_to_stop(&self) {
        if let Some(pid) = self.pid() {
            procfs::signal(pid, self.spec.stop);
        }
    }

    /// Waits for the end, by force if need be.
    pub(crate) fn stopped(&mut self, asked: Instant) {
        let Some(child) = &mut self.child else { return };
        let left = self.spec.patience.saturating_sub(asked.elapsed());
        if !wait::until(left, Duration::from_millis(20), || matches!(child.try_wait(), Ok(Some(_)) | Err(_)))
        {
            eprintln!("{} did not stop within {:?}; killing it", self.spec.name, self.spec.patience);
            let _ = child.kill();
            let _ = child.wait();
        }
        self.child = None;
        self.ready = false;
    }
}

fn spawn(spec: &Spec, run: &Run, state: &State) -> Result<Child> {
    command(run, state, spec.name, &spec.command, &spec.env)?
        .spawn()
        .with_context(|| format!("starting {}", spec.name))
}

/// A command at the root of the checkout whose output is appended to the log `name`.
pub(crate) fn command(
    run: &Run,
    state: &State,
    name: &str,
    words: &[OsString],
    env: &[(&'static str, OsString)],
) -> Result<Command> {
    let (program, args) = words.split_first().context("an empty command")?;
    let log = log(&state.log(name))?;
    let mut command = run.program(program)?;
    command.args(args).current_dir(&state.workspace.root);
    // Only what is set here counts, not what the user's shell happens to hold under the same name.
    for name in services::leading() {
        command.env_remove(name);
    }
    command.envs(env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(log.try_clone().context("the log's second handle")?).stderr(log);
    Ok(command)
}

fn log(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("opening {}", path.display()))
}

/// Keeps one log of the run before.
pub(crate) fn keep_old(path: &PathBuf) {
    let _ = fs::rename(path, path.with_extension("log.old"));
}
