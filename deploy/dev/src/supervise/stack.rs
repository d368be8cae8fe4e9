//! What the supervisor owns, and the status it publishes.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::Path,
    process,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::unit::{self, Probe, Spec, Unit};
use crate::{
    infra::{Source, docker::Containers},
    layout::State,
    ports::Ports,
    run::{
        Run,
        procfs::{self, Belongings},
        signals::Signals,
    },
    services::METRICS_ABOVE,
    status::{Mode, Process, Status},
    wait,
};

/// Everything that runs.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) state: State,
    pub(crate) signals: Signals,
    pub(crate) ports: Ports,
    pub(crate) status: Status,
    pub(crate) containers: Option<Containers>,
    /// The pid of the supervisor's guard.
    pub(crate) guard: i32,
    run: Run,
    units: Vec<Unit>,
    written: Option<Status>,
}

impl Stack {
    /// Nothing runs yet.
    pub(crate) fn new(state: &State, run: Run, signals: Signals, guard: i32) -> Self {
        let status = Status {
            root: state.workspace.root.display().to_string(),
            run: run.id.clone(),
            started: false,
            mode: Mode { postgres: Source::Native, kafka: Source::Native },
            database: None,
            kafka: None,
            topic_prefix: String::new(),
            jwt_dir: state.workspace.jwt().display().to_string(),
            compose_project: None,
            processes: Vec::new(),
            binaries: shown(&state.workspace.binaries(), &state.workspace.root),
        };
        let ports = Ports::load(state.ports(), state.workspace.hash());
        let (state, units) = (state.clone(), Vec::new());
        Self { state, signals, ports, status, containers: None, guard, run, units, written: None }
    }

    /// Starts a process without waiting for it.
    pub(crate) fn add(&mut self, spec: Spec) -> Result<()> {
        self.units.push(Unit::start(spec, &self.run, &self.state)?);
        self.publish()
    }

    /// Waits until all that was added is ready. Who ends before that fails the start.
    pub(crate) fn wait_ready(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            ensure!(!self.signals.came(), "interrupted");
            for unit in &mut self.units {
                let name = unit.spec.name;
                if let Some(status) = unit.ended() {
                    bail!("{name} ended while starting ({status})\n{}", tail(&self.state.log(name)));
                }
                unit.ready = unit.ready || unit.spec.probe.answers();
            }
            let Some(late) = self.units.iter().find(|unit| !unit.ready) else { return self.publish() };
            if Instant::now() > deadline {
                let name = late.spec.name;
                bail!("{name} is not ready after {patience:?}\n{}", tail(&self.state.log(name)));
            }
            wait::pause(Duration::from_millis(50));
        }
    }

    /// Runs a program to its end; its output is the log `name`, whose end is told if it fails.
    pub(crate) fn job(&self, name: &str, words: &[OsString], env: &[(&'static str, OsString)]) -> Result<()> {
        unit::keep_old(&self.state.log(name));
        let mut command = unit::command(&self.run, &self.state, name, words, env)?;
        let mut child = command.spawn().with_context(|| format!("starting {name}"))?;
        loop {
            if let Some(status) = child.try_wait().with_context(|| format!("waiting for {name}"))? {
                ensure!(status.success(), "{name} failed ({status})\n{}", tail(&self.state.log(name)));
                return Ok(());
            }
            if self.signals.came() {
                let _ = child.kill();
                let _ = child.wait();
                bail!("interrupted");
            }
            wait::pause(Duration::from_millis(20));
        }
    }

    /// All that was asked for is ready.
    pub(crate) fn started(&mut self) -> Result<()> {
        self.status.started = true;
        self.ports.save()?;
        self.publish()
    }

    /// What to probe from now on, by position.
    pub(crate) fn probes(&self) -> Vec<(usize, Probe)> {
        self.units.iter().enumerate().map(|(index, unit)| (index, unit.spec.probe)).collect()
    }

    /// The answer to a probe.
    pub(crate) fn probed(&mut self, index: usize, answers: bool) {
        if let Some(unit) = self.units.get_mut(index) {
            unit.ready = answers && unit.pid().is_some();
        }
    }

    /// Notices ends and starts again what has ended.
    pub(crate) fn revive(&mut self) -> Result<()> {
        for unit in &mut self.units {
            if let Some(status) = unit.ended() {
                eprintln!("{} ended unexpectedly ({status}); starting it again", unit.spec.name);
            }
            unit.revive(&self.run, &self.state)?;
        }
        Ok(())
    }

    /// Writes the status if it has changed.
    pub(crate) fn publish(&mut self) -> Result<()> {
        self.status.processes = self.processes();
        if self.written.as_ref() != Some(&self.status) {
            self.status.write(&self.state.status())?;
            self.written = Some(self.status.clone());
        }
        Ok(())
    }

    fn processes(&self) -> Vec<Process> {
        let local = |port: u16| format!("http://127.0.0.1:{port}");
        let of = |name: &str, pid: Option<i32>, ready: bool, log: &str| Process {
            name: name.to_owned(),
            pid,
            http: None,
            metrics: None,
            log: shown(&self.state.log(log), &self.state.workspace.root),
            ready,
            restarts: 0,
            start_time: pid.and_then(procfs::start_time),
        };
        let own = process::id() as i32;
        let mut all = vec![
            of("supervisor", Some(own), true, "supervisor"),
            of("guard", Some(self.guard), true, "supervisor"),
        ];
        all.extend(self.units.iter().map(|unit| Process {
            http: unit.spec.http.map(local),
            metrics: unit.spec.http.map(|port| local(port + METRICS_ABOVE)),
            restarts: unit.restarts,
            ..of(unit.spec.name, unit.pid(), unit.ready, unit.spec.name)
        }));
        for (name, source) in [("postgres", self.status.mode.postgres), ("kafka", self.status.mode.kafka)] {
            if source == Source::Docker {
                all.push(of(name, None, self.status.started, "docker"));
            }
        }
        all
    }

    /// Stops all in order: services, relay, Kafka, PostgreSQL; then whatever else belongs to the run.
    pub(crate) fn stop(&mut self) {
        let phases: BTreeSet<u8> = self.units.iter().map(|unit| unit.spec.phase).collect();
        for phase in phases {
            let asked = Instant::now();
            let mut units: Vec<_> = self.units.iter_mut().filter(|unit| unit.spec.phase == phase).collect();
            units.iter().for_each(|unit| unit.ask_to_stop());
            units.iter_mut().for_each(|unit| unit.stopped(asked));
        }
        if let Some(containers) = &self.containers {
            containers.down();
        }
        // The foreground carries no mark, its programs do; the supervisor is this process.
        let cluster = Some(self.state.postgres().join("data"));
        if !(Belongings { run: self.run.id.clone(), cluster }.sweep()) {
            eprintln!("some processes of the run {} could not be killed", self.run.id);
        }
        let _ = fs::remove_file(self.state.status());
    }
}

/// A path as it is told: relative to the root if it is below it.
fn shown(path: &Path, root: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// The end of a log, for an error message.
fn tail(path: &Path) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let last: String = last_words(&text).iter().map(|line| format!("    {line}\n")).collect();
    format!("{last}  the whole log: {}", path.display())
}

/// The last lines, without the backtrace that follows them where RUST_BACKTRACE is set.
fn last_words(text: &str) -> Vec<&str> {
    let told = text.rfind("Stack backtrace:").map_or(text, |at| &text[..at]);
    let lines: Vec<&str> = told.trim_end().lines().collect();
    lines[lines.len().saturating_sub(15)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::last_words;

    #[test]
    fn an_error_is_told_without_its_backtrace() {
        assert_eq!(last_words("a\nError: b\n\nStack backtrace:\n  0: c\n"), ["a", "Error: b"]);
        assert_eq!(last_words(&"x\n".repeat(40)).len(), 15);
        assert!(last_words("").is_empty());
    }
}
