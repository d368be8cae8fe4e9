//! `test`: cargo's tests against a PostgreSQL and a Kafka of their own.

use std::process::ExitCode;

use anyhow::{Context, Result};

use super::{build, code, setup};
use crate::{
    cli::{self, Only, Suite},
    layout::{Space, Workspace},
    run::session::Session,
    services::FEATURES,
    supervise::client::Supervisor,
    ui,
};

/// Runs the tests and passes cargo's exit code.
pub(crate) fn run(workspace: &Workspace, args: &cli::Test) -> Result<ExitCode> {
    let session = Session::begin(&workspace.state(Space::Test))?;
    let result = tests(&session, workspace, args);
    session.end();
    result
}

fn tests(session: &Session, workspace: &Workspace, args: &cli::Test) -> Result<ExitCode> {
    let suite = args.suite;
    let only = if suite == Some(Suite::Unit) { None } else { Some(Only::Infra) };
    let need = only.map_or_else(|| Ok(setup::Need::build()), |only| setup::Need::of(only, workspace))?;
    setup::ensure(session, need)?;
    if matches!(suite, None | Some(Suite::E2e | Suite::Crash)) {
        // These tests start the services' binaries.
        build::binaries(session)?;
    }
    let mut cargo = session.cargo()?;
    cargo.args(["test", "--features", FEATURES]).args(selection(suite)).args(&args.args);
    let Some(only) = only else {
        ui::heading("Testing");
        return session.run(&mut cargo).map(code);
    };
    let (mut supervisor, status) = Supervisor::start(session, &workspace.state(Space::Test), only)?;
    let addresses = status
        .database
        .context("no database server")
        .and_then(|database| Ok((database.admin_url, status.kafka.context("no broker")?.bootstrap)));
    let result = addresses.and_then(|(url, bootstrap)| {
        ui::heading("Testing");
        session.run(cargo.env("DATABASE_URL", url).env("KAFKA_BOOTSTRAP", bootstrap)).map(code)
    });
    supervisor.check()?;
    supervisor.stop();
    result
}

fn selection(suite: Option<Suite>) -> &'static [&'static str] {
    match suite {
        None => &["--workspace"],
        Some(Suite::Unit) => &["--workspace", "--lib", "--bins"],
        Some(Suite::It) => &["--workspace", "--test", "it"],
        // With --workspace, so that features resolve as in the build of the binaries.
        Some(Suite::E2e) => &["--workspace", "--test", "e2e"],
        Some(Suite::Crash) => &["--workspace", "--test", "crash"],
    }
}
