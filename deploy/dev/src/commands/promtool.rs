//! promtool: checks the alert rules. One can do without; it is never installed as a service.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use super::setup;
use crate::{layout::Workspace, run::session::Session, ui};

/// The first that knows `keep_firing_for`.
const OLDEST: (u32, u32) = (2, 42);
const HOW: &str = "put promtool of Prometheus 2.42 or newer on the PATH";

/// Runs the rules' own checks and their tests, or says in one line that it does not.
pub(super) fn check(session: &Session, workspace: &Workspace) -> Result<()> {
    let Some(promtool) = find(workspace) else {
        ui::note(
            "deploy/prometheus is not checked: there is no promtool 2.42 or newer; `cargo dev setup` fetches it",
        );
        return Ok(());
    };
    ui::heading("Alert rules and their tests (promtool)");
    for args in [
        ["check", "config", "deploy/prometheus/prometheus.yml"],
        ["check", "rules", "deploy/prometheus/alerts.yml"],
        ["test", "rules", "deploy/prometheus/alerts_test.yml"],
    ] {
        session.must(session.program(&promtool)?.args(args))?;
    }
    Ok(())
}

/// Fetches it if there is none and this is a Debian-like system; else says how. Never an error.
pub(super) fn provide(session: &Session, workspace: &Workspace) {
    if find(workspace).is_some() {
        return;
    }
    ui::note("missing (optional): promtool (checks the alert rules)");
    let debian = setup::found("apt-get") && setup::found("dpkg-deb");
    match debian.then(|| fetch(session, workspace)) {
        Some(Ok(())) if find(workspace).is_some() => {}
        Some(Ok(())) => ui::note(&format!("Debian's promtool is too old; {HOW}")),
        Some(Err(error)) => {
            ui::note(&format!("no promtool ({error:#}); try: sudo apt-get update && cargo dev setup"));
        }
        None => ui::note(HOW),
    }
}

fn own(workspace: &Workspace) -> PathBuf {
    workspace.dev().join("tools/bin/promtool")
}

fn find(workspace: &Workspace) -> Option<PathBuf> {
    [PathBuf::from("promtool"), own(workspace)].into_iter().find(|program| is_new_enough(program))
}

fn is_new_enough(program: &Path) -> bool {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let version = output.ok().and_then(|output| parse(&String::from_utf8_lossy(&output.stdout)));
    version.is_some_and(|version| version >= OLDEST)
}

fn parse(text: &str) -> Option<(u32, u32)> {
    let version = text.strip_prefix("promtool, version ")?;
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Takes the program out of Debian's package. Installing the package would start a server, and need root.
fn fetch(session: &Session, workspace: &Workspace) -> Result<()> {
    ui::heading("Fetching promtool out of Debian's package prometheus, below .dev/ (once)");
    let dir = workspace.dev().join("tools/promtool");
    let result = unpack(session, &dir, &own(workspace));
    // 95 MB, of which one program is wanted.
    let _ = fs::remove_dir_all(&dir);
    result
}

fn unpack(session: &Session, dir: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    download(session, dir)?;
    let mut files = fs::read_dir(dir)?.filter_map(Result::ok).map(|entry| entry.path());
    let package = files.find(|path| path.extension().is_some_and(|ext| ext == "deb"));
    let package = package.context("apt-get downloaded nothing")?;
    session.must(session.program("dpkg-deb")?.arg("--extract").arg(package).arg(dir))?;
    fs::create_dir_all(to.parent().context("no folder")?)?;
    fs::rename(dir.join("usr/bin/promtool"), to).context("the package has no promtool")
}

fn download(session: &Session, dir: &Path) -> Result<()> {
    let apt = |args: &[&str]| -> Result<Command> {
        let mut command = session.program("apt-get")?;
        // As root apt would fetch as a user who may not write here, and warn of it.
        command.args(["-qq", "-o", "APT::Sandbox::User=root"]).args(args).current_dir(dir);
        command.stdin(Stdio::null()).env("DEBIAN_FRONTEND", "noninteractive");
        Ok(command)
    };
    let first = session.must(&mut apt(&["download", "prometheus"])?);
    if first.is_ok() || !rustix::process::geteuid().is_root() {
        return first;
    }
    // The lists may be missing, or name a version that has been replaced.
    let _ = session.run(&mut apt(&["update"])?)?;
    session.must(&mut apt(&["download", "prometheus"])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_understood() {
        let debian = "promtool, version 2.42.0+ds (branch: debian/sid, revision: 2.42.0+ds-5)\n";
        assert_eq!(parse(debian), Some((2, 42)));
        assert_eq!(parse("promtool, version 3.5.0 (branch: HEAD)"), Some((3, 5)));
        assert_eq!(parse("command not found"), None);
    }
}
