//! `token`: a bearer token signed with the development key.

use std::process::ExitCode;

use anyhow::Result;

use super::{build, code};
use crate::{
    cli,
    layout::{Space, Workspace},
    run::session::Session,
};

/// Prints the token and nothing else on stdout.
pub(crate) fn token(workspace: &Workspace, args: &cli::Token) -> Result<ExitCode> {
    let session = Session::begin(&workspace.state(Space::Dev))?;
    let result = sign(&session, workspace, args);
    session.end();
    result
}

fn sign(session: &Session, workspace: &Workspace, args: &cli::Token) -> Result<ExitCode> {
    if workspace.binary("token").is_err() {
        build::binaries(session)?;
    }
    build::key(session, workspace)?;
    let mut command = session.program(workspace.binary("token")?)?;
    command.args(["sign", "--dir"]).arg(workspace.jwt());
    let customer = args.customer.map(|id| id.to_string());
    for (flag, value) in [("--customer", &customer), ("--scope", &args.scope), ("--ttl", &args.ttl)] {
        command.args(value.iter().flat_map(|value| [flag, value]));
    }
    command.args(args.role.iter().flat_map(|role| ["--role", role]));
    session.run(&mut command).map(code)
}
