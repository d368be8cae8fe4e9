//! Building the workspace's programs: one call for all, with cargo's own progress.

use anyhow::{Context, Result};

use crate::{layout::Workspace, run::session::Session, services::FEATURES, ui};

/// Builds every binary of the workspace.
pub(crate) fn binaries(session: &Session) -> Result<()> {
    ui::heading("Building (cargo build --workspace --bins)");
    session
        .must(session.cargo()?.args(["build", "--workspace", "--bins", "--features", FEATURES]))
        .context("if a query or a table has changed, `cargo dev prepare` renews the query cache")
}

/// Builds every binary as it is released: without crash points.
pub(crate) fn release(session: &Session) -> Result<()> {
    ui::heading("Building (cargo build --release --workspace --bins)");
    session.must(session.cargo()?.args(["build", "--release", "--workspace", "--bins"]))
}

/// Makes the development key unless there is one.
pub(crate) fn key(session: &Session, workspace: &Workspace) -> Result<()> {
    let jwt = workspace.jwt();
    std::fs::create_dir_all(&jwt).with_context(|| format!("creating {}", jwt.display()))?;
    let mut command = session.program(workspace.binary("token")?)?;
    // Its words are not this tool's result, which alone goes to stdout.
    session.must(command.args(["keygen", "--keep", "--dir"]).arg(&jwt).stdout(std::process::Stdio::null()))
}
