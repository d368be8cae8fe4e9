//! The command line.

use clap::{Command, CommandFactory, FromArgMatches, Parser};
use waybill_service::{health, postgres};

use crate::{Config, NAME};

/// Finds, explains, replays and archives dead letters.
#[derive(Debug, Parser)]
#[command(name = NAME, version, about)]
pub enum Cli {
    /// Index dead letters, carry out replays, and serve the HTTP API.
    Serve(Box<Config>),
    /// Apply pending migrations and exit.
    Migrate(postgres::Config),
    /// Exit 0 when a running instance is ready; for container probes.
    Healthcheck(health::ProbeConfig),
}

/// The service's ports, where the shared settings have the order service's.
const PORTS: [(&str, &str); 2] = [("http_listen", "127.0.0.1:8083"), ("metrics_listen", "127.0.0.1:9083")];

impl Cli {
    /// The command with this service's default ports.
    #[must_use]
    pub fn command() -> Command {
        let ports = |verb: Command| {
            PORTS.into_iter().fold(verb, |verb, (name, address)| {
                let known = verb.get_arguments().any(|argument| argument.get_id() == name);
                if known { verb.mut_arg(name, |argument| argument.default_value(address)) } else { verb }
            })
        };
        <Self as CommandFactory>::command()
            .mut_subcommand("serve", ports)
            .mut_subcommand("healthcheck", ports)
    }

    /// Parses the arguments, the program's name first.
    ///
    /// # Errors
    /// What clap says, help and version included: print it with [`clap::Error::exit`].
    pub fn parse_arguments(arguments: impl IntoIterator<Item = String>) -> Result<Self, clap::Error> {
        Self::from_arg_matches(&Self::command().try_get_matches_from(arguments)?)
    }
}
