//! `test`: cargo's tests against a PostgreSQL and a Kafka of their own.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

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
    refuse_package(&args.args)?;
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

/// Cargo ignores `-p` beside `--workspace` without a word, and without `--workspace` it refuses the features.
fn refuse_package(args: &[String]) -> Result<()> {
    let of_cargo = args.iter().take_while(|arg| *arg != "--");
    for arg in of_cargo {
        if arg == "--package"
            || arg.starts_with("--package=")
            || (arg.starts_with("-p") && !arg.starts_with("--"))
        {
            bail!(
                "{arg} cannot be used here, all packages share one build; choose by suite or by the tests' names"
            );
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::refuse_package;

    #[test]
    fn a_package_is_refused_instead_of_being_ignored() {
        let refused = |words: &[&str]| {
            refuse_package(&words.iter().map(ToString::to_string).collect::<Vec<_>>()).is_err()
        };
        assert!(
            refused(&["-p", "waybill-relay"]) && refused(&["-pwaybill-relay"]) && refused(&["--package=x"])
        );
        assert!(!refused(&["name", "--profile", "dev", "--", "-p"]));
    }
}
