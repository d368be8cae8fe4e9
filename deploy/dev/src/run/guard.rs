//! The guard: a tiny process in a session of its own that waits for one process to die and then kills the run.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write, stdout},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, setsid};

use super::{
    MARKER, Run,
    procfs::{self, Belongings},
};
use crate::{cli, infra::docker, status::Status, wait};

/// The hidden verb `guard`.
pub(crate) fn watch(args: &cli::Guard) -> Result<()> {
    // Fails only if it leads a session already; then there is nothing to leave.
    let _ = setsid();
    // The next stack in this folder waits here until the guard of the last one has done its work: what lies in
    // the cluster's folder is killed without regard to whose it is.
    let _turn = args.state.as_ref().map(|state| take_turn(&state.join("guard.lock"))).transpose()?;
    // A closed pipe means that the watched one is gone already, which the loop sees by itself.
    let _ = writeln!(stdout(), "watching").and_then(|()| stdout().flush());
    while procfs::is_alive(args.watch, args.start) {
        wait::pause(Duration::from_millis(100));
    }
    let cluster = args.state.as_ref().map(|state| state.join("postgres/data"));
    let clean = Belongings { run: args.run.clone(), cluster }.sweep();
    if let Some(state) = &args.state {
        forget(&state.join("status.json"), &args.run);
    }
    ensure!(clean, "processes of the run {} could not be killed", args.run);
    Ok(())
}

fn take_turn(file: &Path) -> Result<File> {
    let lock = File::create(file).with_context(|| format!("creating {}", file.display()))?;
    lock.lock().with_context(|| format!("locking {}", file.display()))?;
    Ok(lock)
}

/// Takes away what a killed supervisor could not: its containers and its status file.
fn forget(file: &Path, run: &str) {
    let Some(status) = Status::read(file).filter(|status| status.run == run) else { return };
    if let Some(project) = &status.compose_project {
        docker::kill(project);
    }
    let _ = fs::remove_file(file);
}

/// The guard of this process; started again when somebody kills it.
#[derive(Debug)]
pub(crate) struct Guard {
    stopping: Arc<AtomicBool>,
    pid: Arc<Mutex<i32>>,
    keeper: Option<JoinHandle<()>>,
}

impl Guard {
    /// Starts it and waits until it watches. Everything the run starts must be started after this. With a
    /// `state` the stack in that folder is this process's own, and falls with it.
    pub(crate) fn start(run: &Run, state: Option<&Path>) -> Result<Self> {
        let own = i32::try_from(std::process::id()).context("own pid")?;
        let start = procfs::start_time(own).context("reading /proc: is it mounted?")?;
        let mut command = run.tool()?;
        // Unmarked: a guard ends by itself, and must not fall to the other guard before it has done its work.
        command.env_remove(MARKER).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.args(["guard", "--run", &run.id, "--watch", &own.to_string(), "--start", &start.to_string()]);
        command.args(state.map(|_| "--state")).args(state).current_dir("/");
        let child = spawn(&mut command)?;
        let pid = Arc::new(Mutex::new(child.id() as i32));
        let stopping = Arc::new(AtomicBool::new(false));
        let keeper = {
            let (pid, stopping) = (Arc::clone(&pid), Arc::clone(&stopping));
            thread::spawn(move || keep(command, child, &pid, &stopping))
        };
        Ok(Self { stopping, pid, keeper: Some(keeper) })
    }

    /// The pid of the present guard.
    pub(crate) fn pid(&self) -> i32 {
        *lock(&self.pid)
    }

    /// Ends the guard: the run is over and clean.
    pub(crate) fn stop(mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        procfs::signal(*lock(&self.pid), Signal::KILL);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

fn keep(mut command: Command, mut child: Child, pid: &Mutex<i32>, stopping: &AtomicBool) {
    loop {
        let _ = child.wait();
        let mut current = lock(pid);
        if stopping.load(Ordering::SeqCst) {
            return;
        }
        // Without a guard the kernel's signal still takes the direct children, so failing here is no reason to stop.
        match spawn(&mut command) {
            Ok(next) => {
                *current = next.id() as i32;
                child = next;
            }
            Err(error) => eprintln!("restarting the guard: {error:#}"),
        }
        drop(current);
        wait::pause(Duration::from_millis(20));
    }
}

fn spawn(command: &mut Command) -> Result<Child> {
    let mut child = command.spawn().context("starting the guard")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("waiting for the guard")?;
    }
    Ok(child)
}

fn lock(pid: &Mutex<i32>) -> MutexGuard<'_, i32> {
    pid.lock().unwrap_or_else(PoisonError::into_inner)
}
