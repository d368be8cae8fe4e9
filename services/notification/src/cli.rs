//! The command line.

use clap::{Command, CommandFactory, FromArgMatches, Parser};
use waybill_service::{health, postgres};

use crate::{Config, NAME};

/// Tells customers what became of their orders and points.
#[derive(Debug, Parser)]
#[command(name = NAME, version, about)]
pub enum Cli {
    /// Consume orders.v1 and points.v1, send, and serve the HTTP API.
    Serve(Box<Config>),
    /// Apply pending migrations and exit.
    Migrate(postgres::Config),
    /// Exit 0 when a running instance is ready; for container probes.
    Healthcheck(health::ProbeConfig),
}

/// The service's ports, where the shared settings have the order service's.
const PORTS: [(&str, &str); 2] = [("http_listen", "127.0.0.1:8082"), ("metrics_listen", "127.0.0.1:9082")];

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_are_this_service_s_own() {
        Cli::command().debug_assert();
        for (verb, ports) in [("serve", &PORTS[..]), ("healthcheck", &PORTS[..1])] {
            let command = Cli::command();
            let verb = command.find_subcommand(verb).expect("a verb");
            for (name, address) in ports {
                let argument = verb.get_arguments().find(|a| a.get_id() == name).expect("a setting");
                assert_eq!(argument.get_default_values(), [*address]);
            }
        }
    }
}
