//! `test`, `bench` and `chaos`: cargo's tests, and programs of the tests crate, against a PostgreSQL and a Kafka of
//! their own.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use super::{build, code, setup};
use crate::{
    cli::{self, Only, Suite},
    infra::databases::Server,
    layout::{Space, State, Workspace},
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
    servers(session, workspace, true)?;
    if matches!(suite, None | Some(Suite::E2e | Suite::Crash | Suite::Chaos | Suite::Fuzz)) {
        // These tests start the services' binaries.
        build::binaries(session)?;
    }
    let mut cargo = session.cargo()?;
    cargo.args(["test", "--features", FEATURES]).args(selection(suite)).args(&args.args);
    beside_infra(session, &workspace.state(Space::Test), "Testing", &mut cargo)
}

/// `bench` and `chaos`: programs of the tests crate beside a PostgreSQL and a Kafka of their own.
pub(crate) fn measure(
    workspace: &Workspace,
    program: &str,
    release: bool,
    args: &[String],
) -> Result<ExitCode> {
    // Tests' PostgreSQL does not wait for the disk; what is measured must.
    let state = workspace.state(if release { Space::Dev } else { Space::Test });
    let session = Session::begin(&state)?;
    let result = measured(&session, &state, program, release, args);
    session.end();
    result
}

fn measured(
    session: &Session,
    state: &State,
    program: &str,
    release: bool,
    args: &[String],
) -> Result<ExitCode> {
    let workspace = &state.workspace;
    servers(session, workspace, false)?;
    if release {
        build::release(session)?;
    } else {
        build::binaries(session)?;
    }
    let folder = workspace.binaries();
    let folder = if release { folder.with_file_name("release") } else { folder };
    let mut command = session.program(folder.join(program))?;
    beside_infra(session, state, program, command.args(args))
}

/// Tests name their databases and topics at random; a server must only let them make some.
fn servers(session: &Session, workspace: &Workspace, tests: bool) -> Result<()> {
    let plan = setup::servers(session, workspace, Only::Infra, tests)?;
    Server::given(workspace, &plan.given)?.map_or(Ok(()), |server| server.check(&[]))
}

fn beside_infra(session: &Session, state: &State, heading: &str, command: &mut Command) -> Result<ExitCode> {
    let (mut supervisor, status) = Supervisor::start(session, state, Only::Infra)?;
    let addresses = status
        .database
        .context("no database server")
        .and_then(|database| Ok((database.admin_url, status.kafka.context("no broker")?.bootstrap)));
    let result = addresses.and_then(|(url, bootstrap)| {
        ui::heading(heading);
        session.run(command.env("DATABASE_URL", url).env("KAFKA_BOOTSTRAP", bootstrap)).map(code)
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
        Some(Suite::Fuzz) => &["--workspace", "--test", "fuzz"],
        Some(Suite::Chaos) => &["--workspace", "--test", "chaos"],
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
