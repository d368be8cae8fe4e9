//! A private PostgreSQL cluster from the machine's own binaries, and SQL by `psql`.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use crate::layout::{Space, State};

/// The cluster's superuser; it is trusted, and the cluster listens on the loopback address only.
const USER: &str = "waybill";

/// The capabilities that let user `postgres` work below a folder that only root may enter.
const CAPABILITIES: &str = "+dac_override,+dac_read_search";

/// The newest server binaries: those of `PATH`, else of Debian's versioned folders.
pub(crate) fn binaries() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path =
        env::split_paths(&path).find(|dir| dir.join("initdb").is_file() && dir.join("postgres").is_file());
    in_path.or_else(|| {
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
        let version = |dir: &Path| dir.file_name()?.to_str()?.parse::<u32>().ok();
        let newest = versions.filter_map(|entry| Some(entry.ok()?.path())).max_by_key(|dir| version(dir))?;
        Some(newest.join("bin")).filter(|bin| bin.join("initdb").is_file())
    })
}

/// Whether PostgreSQL must run as another user, because it refuses root.
pub(crate) fn needs_other_user() -> bool {
    rustix::process::geteuid().is_root()
}

/// A native server, not yet started.
#[derive(Debug)]
pub(crate) struct Native {
    bin: PathBuf,
    folder: PathBuf,
    port: u16,
    durable: bool,
}

impl Native {
    /// Needs the server's binaries.
    pub(crate) fn new(state: &State, port: u16) -> Result<Self> {
        let bin = binaries().context("no PostgreSQL server found; `cargo dev setup` says how to get it")?;
        Ok(Self { bin, folder: state.postgres(), port, durable: state.space == Space::Dev })
    }

    /// Where it will answer.
    pub(crate) fn admin_url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port)
    }

    /// The cluster's folder.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Whether `initdb` has run to its end.
    pub(crate) fn is_initialized(&self) -> bool {
        self.stamp().is_file()
    }

    /// Removes what an interrupted `initdb` left and returns the command that makes the cluster.
    pub(crate) fn initialize(&self) -> Result<Vec<OsString>> {
        let data = self.data();
        if data.exists() {
            fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))?;
        }
        fs::create_dir_all(&data).with_context(|| format!("creating {}", data.display()))?;
        if needs_other_user() {
            let (uid, gid) = postgres_user()?;
            chown(&data, Some(uid), Some(gid)).with_context(|| format!("chown of {}", data.display()))?;
        }
        // The C locale sorts alike everywhere; no fsync, because a crash here only repeats this step.
        let mut command = self.as_user("initdb");
        command.extend(["-D".into(), data.into()]);
        command.extend(
            ["-U", USER, "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"].map(Into::into),
        );
        Ok(command)
    }

    /// To be called when `initdb` has succeeded.
    pub(crate) fn initialized(&self) -> Result<()> {
        fs::write(self.stamp(), "").with_context(|| format!("writing {}", self.stamp().display()))
    }

    /// The server's command line. The lock of the stack is held, so a left `postmaster.pid` is of a dead server.
    pub(crate) fn serve(&self) -> Result<Vec<OsString>> {
        let left = self.data().join("postmaster.pid");
        if left.exists() {
            fs::remove_file(&left).with_context(|| format!("removing {}", left.display()))?;
        }
        let mut command = self.as_user("postgres");
        command.extend(["-D".into(), self.data().into()]);
        let durable: &[&str] =
            if self.durable { &[] } else { &["fsync=off", "full_page_writes=off", "synchronous_commit=off"] };
        let port = format!("port={}", self.port);
        // No socket: its path may be longer than the kernel allows.
        let always =
            [port.as_str(), "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=300"];
        for setting in always.into_iter().chain(durable.iter().copied()) {
            command.extend(["-c".into(), setting.into()]);
        }
        Ok(command)
    }

    fn stamp(&self) -> PathBuf {
        self.folder.join("initialized")
    }

    fn as_user(&self, program: &str) -> Vec<OsString> {
        let mut command: Vec<OsString> = Vec::new();
        if needs_other_user() {
            // The kernel forgets the death signal when the user changes: setpriv asks for it again.
            let setpriv = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"];
            command.extend(setpriv.map(Into::into));
            command.extend(["--pdeathsig", "KILL", "--inh-caps", CAPABILITIES].map(Into::into));
            command.extend(["--ambient-caps", CAPABILITIES].map(Into::into));
        }
        command.push(self.bin.join(program).into());
        command
    }
}

fn postgres_user() -> Result<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
    parse_user(&passwd)
        .context("there is no user `postgres`, which PostgreSQL runs as when this tool is root")
}

fn parse_user(passwd: &str) -> Option<(u32, u32)> {
    let line = passwd.lines().find_map(|line| line.strip_prefix("postgres:"))?;
    let mut fields = line.split(':').skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Whether a server answers at all: it replies to a request for TLS with one byte before anything else.
pub(crate) fn answers(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let patience = Duration::from_millis(500);
        let mut stream = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(&[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f])?;
        let mut reply = [0];
        stream.read_exact(&mut reply)?;
        Ok(matches!(reply[0], b'N' | b'S'))
    };
    ask().unwrap_or(false)
}

/// `psql` against a database: no start-up file, stops at the first error, prints bare values.
fn psql(url: &str) -> Command {
    let mut command = Command::new("psql");
    // libpq lets these two lead elsewhere than the URL says.
    command.env_remove("PGHOSTADDR").env_remove("PGSERVICE");
    command.args(["-X", "-q", "-A", "-t", "-w", "-v", "ON_ERROR_STOP=1", "-d"]).arg(url);
    command.env("PGCONNECT_TIMEOUT", "5").stdin(Stdio::null());
    command
}

/// Runs one statement and returns what it prints; the error is what the server says.
pub(crate) fn query(url: &str, sql: &str) -> Result<String> {
    let output =
        psql(url).args(["-c", sql]).output().context("starting psql; `cargo dev setup` installs it")?;
    text(&output)
}

fn text(output: &Output) -> Result<String> {
    ensure!(output.status.success(), "psql: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Applies a file of SQL in one transaction.
pub(crate) fn apply(url: &str, file: &Path) -> Result<()> {
    if !file.is_file() {
        bail!("{} is not a file", file.display());
    }
    let output = psql(url).arg("-1").arg("-f").arg(file).output().context("starting psql")?;
    text(&output).map(drop).with_context(|| format!("applying {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_found_among_similar_names() {
        let passwd = "root:x:0:0::/:/bin/sh\npostgres2:x:1:1::/:\npostgres:x:105:112:,,,:/var/lib/postgresql:/bin/bash\n";
        assert_eq!(parse_user(passwd), Some((105, 112)));
        assert_eq!(parse_user("root:x:0:0::/:/bin/sh"), None);
    }
}
