//! Nothing outlives its run.
//!
//! Three nets hold every process that a run starts. The kernel kills it when its parent dies ([`exec`]). A
//! [`guard`] process, one for the foreground and one for the supervisor, sees either die and kills by pid
//! whatever carries the run's marker in its environment, grandchildren included. And a graceful stop ends with
//! the same sweep. Killing a guard is noticed by whoever it guards, which starts another.

pub(crate) mod exec;
pub(crate) mod guard;
pub(crate) mod procfs;
pub(crate) mod session;
pub(crate) mod signals;

use std::{
    env,
    ffi::OsStr,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{self, Command},
};

use anyhow::{Context, Result};

/// The variable that marks processes. Its value is a chain, the outermost run first, so that a run inside a run
/// (the tool's own tests below `cargo dev test`) falls with the outer one and not the other way round.
pub(crate) const MARKER: &str = "WAYBILL_DEV_RUN";

/// The identity of one run of a stack.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// Unique among all runs.
    pub(crate) id: String,
    chain: String,
}

impl Run {
    /// A new run, inside the current one if there is one.
    pub(crate) fn begin() -> Self {
        let id = uuid::Uuid::new_v4().to_string();
        let chain = match env::var(MARKER) {
            Ok(outer) if !outer.is_empty() => format!("{outer}:{id}"),
            _ => id.clone(),
        };
        Self { id, chain }
    }

    /// The run this process was started in.
    pub(crate) fn current() -> Result<Self> {
        let chain =
            env::var(MARKER).with_context(|| format!("{MARKER} is not set; this verb is internal"))?;
        let id = chain.rsplit(':').next().unwrap_or_default().to_owned();
        Ok(Self { id, chain })
    }

    /// This tool itself with a hidden verb, marked.
    pub(crate) fn tool(&self) -> Result<Command> {
        let mut command = Command::new(own_executable()?);
        command.arg0("waybill-dev").env(MARKER, &self.chain);
        Ok(command)
    }

    /// A program, marked, that dies with this process. Must be spawned from the main thread: the kernel's signal
    /// comes when the spawning thread ends.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = self.tool()?;
        command.args(["exec", "--parent", &process::id().to_string(), "--"]).arg(program);
        Ok(command)
    }
}

/// The path of this executable, also when a build has replaced it meanwhile.
fn own_executable() -> Result<PathBuf> {
    let path = env::current_exe().context("finding this executable")?;
    Ok(if path.is_file() { path } else { PathBuf::from("/proc/self/exe") })
}
