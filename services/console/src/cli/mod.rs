//! The command line: the service's own verbs, and the operator's, which call the HTTP API and nothing else.

mod args;
mod client;
mod dlt;
mod fleet;
mod replay;
mod table;

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
    /// The operator's verbs.
    #[command(flatten)]
    Operate(Box<args::Operate>),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound_and_has_its_own_ports() {
        Cli::command().debug_assert();
        let command = Cli::command();
        let serve = command.find_subcommand("serve").expect("a verb");
        let http = serve.get_arguments().find(|a| a.get_id() == "http_listen").expect("a setting");
        assert_eq!(http.get_default_values(), ["127.0.0.1:8083"]);
    }

    #[test]
    fn operators_verbs_are_taken_with_their_filters() {
        for line in [
            "dlt list --topic orders.v1 --state open,failed_again --json",
            "dlt groups",
            "dlt show 0199f2a4-7c2e-7b7e-8a55-6f1d2c3b4a59 --url http://h:1",
            "dlt plan --group point --limit 5",
            "dlt replay --plan 0199f2a4-7c2e-7b7e-8a55-6f1d2c3b4a59 --rate 10",
            "dlt archive --error-code x --reason done",
            "keys release --topic orders.v1 --group notification --key k",
            "tasks retry 0199f2a4-7c2e-7b7e-8a55-6f1d2c3b4a59",
            "consumers list",
            "audit --verb replay",
        ] {
            let words = ["waybill-console"].into_iter().chain(line.split(' ')).map(str::to_owned);
            assert!(matches!(Cli::parse_arguments(words), Ok(Cli::Operate(_))), "{line}");
        }
    }
}
