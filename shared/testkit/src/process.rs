//! A service's real binary as a child that never outlives its test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::process::{Child, Command};

/// `cargo dev` finds by this variable whatever it started, also when the test binary itself was killed.
pub(crate) const RUN: &str = "WAYBILL_DEV_RUN";

/// A running binary; killed with this value.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

/// Folder of the binaries that belong to the running test binary (`target/debug`).
///
/// # Panics
/// When the test binary does not lie in cargo's folder.
pub fn binaries() -> PathBuf {
    let test = std::env::current_exe().expect("own path");
    let deps = test.parent().expect("in a folder");
    if deps.ends_with("deps") { deps.parent().expect("below target").to_owned() } else { deps.to_owned() }
}

/// An address on the loopback that was free a moment ago, and given to nobody else of this process.
///
/// Below the range that the system takes the ports of outgoing connections from: one of those would take the port
/// before the process that it is meant for.
///
/// # Panics
/// When no port can be had.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 18_000;
    // Test binaries that run side by side start at different places.
    let start = std::process::id() % u32::from(COUNT);
    (0..COUNT)
        .map(|_| u32::from(NEXT.fetch_add(1, Ordering::SeqCst)) * 7 + start)
        .map(|place| FIRST + u16::try_from(place % u32::from(COUNT)).expect("below the count"))
        .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
        .find(|address| std::net::TcpListener::bind(address).is_ok())
        .expect("a free port")
}

impl Process {
    /// Starts `binary` of [`binaries`] with exactly these settings and a log file.
    ///
    /// # Panics
    /// When the binary does not exist: `cargo dev test` builds it first.
    pub fn start(binary: &str, arguments: &[&str], settings: &[(String, String)], log: &Path) -> Self {
        let path = binaries().join(binary);
        assert!(path.exists(), "{} is not built: run `cargo dev test`", path.display());
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("log file");
        let child = Command::new(path)
            .args(arguments)
            .env_clear()
            .envs(std::env::var_os(RUN).map(|run| (RUN, run)))
            .envs(settings.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("log file"))
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .expect("binary starts");
        Self { child, log: log.to_owned() }
    }

    /// Process id while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// SIGKILL, and waits for the end.
    ///
    /// # Panics
    /// When it cannot be killed.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("killed");
    }

    /// Waits for the process to end by itself; the exit code, or `None` when a signal ended it.
    ///
    /// # Panics
    /// When it does not end within the test's patience; with its log.
    pub async fn ended(&mut self) -> Option<i32> {
        match tokio::time::timeout(crate::PATIENCE, self.child.wait()).await {
            Ok(status) => status.expect("waits").code(),
            Err(_) => panic!("the process does not end:\n{}", self.log()),
        }
    }

    /// Whether it still runs.
    ///
    /// # Panics
    /// When the system does not say.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("status").is_none()
    }

    /// What it has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}
