//! `check`: the static checks.

use std::path::PathBuf;

use anyhow::Result;

use super::{promtool, setup};
use crate::{
    infra::docker,
    layout::{Space, Workspace},
    run::session::Session,
    services::FEATURES,
    ui,
};

/// Pinned, so that its rules do not change under us.
const CARGO_DENY: &str = "0.20.2";

/// Runs all of them and stops at the first that fails.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let session = Session::begin(&workspace.state(Space::Dev))?;
    let result = checks(&session, workspace);
    session.end();
    result
}

fn checks(session: &Session, workspace: &Workspace) -> Result<()> {
    setup::ensure(session, setup::Need::build())?;
    ui::heading("Format (cargo fmt)");
    session.must(session.cargo()?.args(["fmt", "--all", "--check"]))?;
    ui::heading("Lints (cargo clippy)");
    let clippy = ["clippy", "--workspace", "--all-targets", "--features", FEATURES, "--", "-D", "warnings"];
    session.must(session.cargo()?.args(clippy))?;
    ui::heading("Documentation (cargo doc)");
    let doc = ["doc", "--workspace", "--no-deps", "--document-private-items", "--features", FEATURES];
    session.must(session.cargo()?.args(doc).env("RUSTDOCFLAGS", "-D warnings"))?;
    deny(session, workspace)?;
    promtool::check(session, workspace)?;
    compose(session)
}

fn deny(session: &Session, workspace: &Workspace) -> Result<()> {
    let tools = workspace.dev().join("tools");
    let own = tools.join("bin/cargo-deny");
    let program = if own.is_file() {
        own
    } else if setup::found("cargo-deny") {
        PathBuf::from("cargo-deny")
    } else {
        ui::heading(&format!("Installing cargo-deny {CARGO_DENY} below .dev/ (once, some minutes)"));
        let install = ["install", "cargo-deny", "--version", CARGO_DENY, "--locked", "--root"];
        // Its own target folder would be built anew each time; cargo's default is a temporary one, which is right.
        session.must(session.cargo()?.args(install).arg(&tools).env_remove("CARGO_TARGET_DIR"))?;
        own
    };
    ui::heading("Licences, bans and sources (cargo deny)");
    // Offline, because advisories need a database from outside; then the crates of other systems must be there too.
    session.must(session.cargo()?.args(["fetch", "--quiet"]))?;
    let mut command = session.program(program)?;
    command.args(["--offline", "--all-features", "--config", ".deny.toml"]);
    command.args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]);
    session.must(&mut command)
}

fn compose(session: &Session) -> Result<()> {
    let Some(compose) = docker::compose() else {
        ui::note("docker-compose.yml is not checked: there is no compose command");
        return Ok(());
    };
    ui::heading("docker-compose.yml");
    let mut command = session.program(compose[0])?;
    session.must(command.args(&compose[1..]).args(["-f", "docker-compose.yml", "config", "-q"]))
}
