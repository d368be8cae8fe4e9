//! A checkout of its own in a temporary folder, the tool as a process, and a look at `/proc`.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// Each test starts a broker; two at once on a small machine would only measure the machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub(crate) struct Checkout {
    folder: TempDir,
    chain: String,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Checkout {
    /// An empty checkout; Kafka's jars are borrowed from the real one if they are there.
    pub(crate) fn new() -> Self {
        Self::with(Some(ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Another one, for a test that has its turn.
    pub(crate) fn another(&self) -> Self {
        Self::with(None)
    }

    fn with(turn: Option<MutexGuard<'static, ()>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let jars = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.dev/kafka/jars");
        if jars.join("complete").is_file() {
            fs::create_dir_all(folder.path().join(".dev/kafka")).unwrap();
            symlink(jars, folder.path().join(".dev/kafka/jars")).unwrap();
        }
        // Inside the run of `cargo dev test`, if there is one, and told from it.
        let own = format!("test-{}", uuid::Uuid::new_v4());
        let chain = std::env::var("WAYBILL_DEV_RUN").map_or(own.clone(), |outer| format!("{outer}:{own}"));
        Self { folder, chain, _turn: turn }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    pub(crate) fn tool(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill-dev"));
        command.arg("--root").arg(self.root()).args(args).stdin(Stdio::null());
        command.env("WAYBILL_DEV_RUN", &self.chain).env("WAYBILL_INFRA", "native");
        let of_the_outer_run =
            ["DATABASE_URL", "KAFKA_BOOTSTRAP", "WAYBILL_DATABASE_URL", "WAYBILL_KAFKA_BOOTSTRAP"];
        for name in of_the_outer_run.into_iter().chain(["WAYBILL_ROOT"]) {
            command.env_remove(name);
        }
        command
    }

    /// Runs the tool to its end. Its output goes through files: what it leaves running would hold a pipe open.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.run_with(args, &[])
    }

    pub(crate) fn run_with(&self, args: &[&str], env: &[(&str, &str)]) -> Output {
        let (out, err) = (self.root().join("out"), self.root().join("err"));
        let mut command = self.tool(args);
        command.envs(env.iter().copied());
        command.stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&err).unwrap());
        let status = command.status().unwrap();
        Output { status, stdout: fs::read(out).unwrap(), stderr: fs::read(err).unwrap() }
    }

    pub(crate) fn must(&self, args: &[&str]) {
        self.must_with(args, &[]);
    }

    /// What it said to people.
    pub(crate) fn must_with(&self, args: &[&str], env: &[(&str, &str)]) -> String {
        let output = self.run_with(args, env);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {told}");
        told
    }

    /// Starts the tool without waiting for it.
    pub(crate) fn spawn(&self, args: &[&str]) -> Foreground {
        Foreground::new(&mut self.tool(args))
    }

    pub(crate) fn status(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.root().join(".dev/status.json")).ok()?).ok()
    }

    /// The pid of a process of the stack; 0 while it has none.
    pub(crate) fn pid(&self, name: &str) -> i32 {
        let status = self.status().unwrap_or_default();
        let processes = status["processes"].as_array().cloned().unwrap_or_default();
        let process = processes.iter().find(|process| process["name"] == name);
        process.and_then(|process| process["pid"].as_i64()).unwrap_or(0) as i32
    }

    pub(crate) fn wait_started(&self) {
        eventually("the stack is started", 60, || {
            self.status().is_some_and(|status| status["started"] == true)
        });
    }

    /// Fails if anything of this checkout still lives five seconds from now at the latest.
    pub(crate) fn nothing_lives(&self, when: &str) {
        let began = Instant::now();
        while !self.living().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(5), "alive after 5 s, {when}: {:?}", self.living());
            pause(20);
        }
    }

    /// Who carries this checkout's mark, works in its folder, or has it on the command line (the guards).
    fn living(&self) -> Vec<String> {
        let (root, own) = (self.root(), std::process::id());
        let pids =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        pids.filter_map(|pid| pid.parse::<u32>().ok())
            .filter(|pid| *pid != own && is_running(*pid))
            .filter_map(|pid| {
                let read = |name: &str| {
                    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default())
                        .into_owned()
                };
                let line = read("cmdline").replace('\0', " ");
                let works_here =
                    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(&root));
                let is_ours =
                    read("environ").contains(&self.chain) || works_here || line.contains(root.to_str()?);
                is_ours.then(|| format!("{pid} {line}"))
            })
            .collect()
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        // Only after a failed assertion is anything left.
        for line in self.living() {
            kill(line.split(' ').next().unwrap().parse().unwrap());
        }
    }
}

pub(crate) struct Foreground(Child);

impl Foreground {
    pub(crate) fn new(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

pub(crate) fn kill(pid: i32) {
    signal(pid, rustix::process::Signal::KILL);
}

pub(crate) fn signal(pid: i32, signal: rustix::process::Signal) {
    if pid > 1 {
        let _ = rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal);
    }
}

/// The point of these tests is to kill at many different times.
#[expect(clippy::disallowed_methods, reason = "the moment is what is varied, not a synchronisation")]
pub(crate) fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

pub(crate) fn eventually(what: &str, seconds: u64, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(seconds), "not within {seconds} s: {what}");
        pause(20);
    }
}
