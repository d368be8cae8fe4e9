//! The command line; its doc comments are the `--help` texts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Sets up, runs, shows and tests the whole of Waybill on this machine.
///
/// PostgreSQL and Kafka are taken from WAYBILL_DATABASE_URL and WAYBILL_KAFKA_BOOTSTRAP if given, else from a running
/// Docker engine, else started natively below `.dev/`. WAYBILL_INFRA=native or =docker overrides the second choice.
#[derive(Debug, Parser)]
#[command(name = "cargo dev", bin_name = "cargo dev", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// The checkout to work in [default: the nearest parent folder whose Cargo.toml has a workspace].
    #[arg(long, global = true, env = "WAYBILL_ROOT", hide_env_values = true)]
    pub(crate) root: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// One verb of `cargo dev`.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Check that everything needed is there; as root on a Debian-like system install it, else say the commands.
    Setup,
    /// Build and start everything in the background; returns when all services are ready.
    Up(Up),
    /// Stop what `up` started, services first, and wait until nothing is left.
    Down,
    /// Show every process, address and database of the running stack; exit code 1 when it is not up.
    Status {
        /// Print the whole of it as JSON (the same as the file .dev/status.json).
        #[arg(long)]
        json: bool,
    },
    /// Print the end of the logs.
    Logs(Logs),
    /// Run everything, place orders, let one message die and replay it, show what happened and check the invariants.
    Demo {
        /// Leave the stack running afterwards (stop it with `cargo dev down`).
        #[arg(long)]
        keep: bool,
    },
    /// Run the tests against a PostgreSQL and a Kafka of their own.
    Test(Test),
    /// Measure the release build: `bench latency|idle|outage|lateness|parked`; `bench --help` has the rest.
    Bench {
        /// Arguments for the bench program.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Torment the real programs at random: `chaos relay|orders|consume`, with `--seed` to have a run again, and `chaos
    /// breaker`, an outage.
    Chaos {
        /// Arguments for the chaos program.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Noise into what reads what others wrote: `fuzz headers|frames|avro|bodies|cursors`, ten minutes each.
    Fuzz {
        /// Arguments for the fuzz program.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Print a bearer token for the APIs of the running stack, and nothing else, on stdout.
    Token(Token),
    /// Put sample customers, products and points into the running stack.
    Seed {
        /// Arguments for the seed program.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Write the cache of checked SQL queries (.sqlx) from the migrations and the sources.
    Prepare {
        /// Change nothing; list the differences and exit with 1 if the cache is stale.
        #[arg(long)]
        check: bool,
    },
    /// Run the static checks: format, lints, documentation, licences and bans, the alert rules, the compose file.
    Check,
    /// Run what continuous integration runs: setup, check, prepare --check, test.
    Ci,
    #[command(hide = true)]
    Supervise(Supervise),
    #[command(hide = true)]
    Guard(Guard),
    #[command(hide = true)]
    Exec(Exec),
}

/// How much of the stack is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Only {
    /// PostgreSQL, Kafka and all services.
    All,
    /// PostgreSQL and Kafka.
    Infra,
    /// PostgreSQL.
    Postgres,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Start only a part; `infra` is PostgreSQL and Kafka.
    #[arg(long, value_enum, default_value_t = Only::All, hide_default_value = true)]
    pub(crate) only: Only,
    /// Stay in the foreground; everything stops with this process (Ctrl-C).
    #[arg(long)]
    pub(crate) foreground: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Whose log: order, relay, point, notification, console, postgres, kafka, supervisor, … [default: all].
    pub(crate) name: Option<String>,
    /// Go on printing what is appended, until interrupted.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// How many of the last lines of each log are printed first.
    #[arg(short = 'n', long, default_value_t = 100)]
    pub(crate) lines: usize,
}

/// Which tests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// Tests inside the sources.
    Unit,
    /// The integration tests of every crate.
    It,
    /// The whole pipeline with real processes.
    E2e,
    /// Processes killed at named points.
    Crash,
    /// Random faults, in their short form.
    Chaos,
    /// Noise, in its short form.
    Fuzz,
}

#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Which tests [default: all of them, with the documentation's examples].
    #[arg(value_enum)]
    pub(crate) suite: Option<Suite>,
    /// Further arguments for `cargo test`, after `--`: names of tests, `--no-fail-fast`, `-- --nocapture`.
    #[arg(last = true)]
    pub(crate) args: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Token {
    /// The customer the token speaks for [default: a fixed development customer].
    #[arg(long)]
    pub(crate) customer: Option<uuid::Uuid>,
    /// What it may do [default: customer].
    #[arg(long)]
    pub(crate) scope: Option<String>,
    /// What an operator may do: view, payload or act; can be repeated [default: view].
    #[arg(long)]
    pub(crate) role: Vec<String>,
    /// How long it is valid, such as 30m or 12h [default: 12h].
    #[arg(long)]
    pub(crate) ttl: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Supervise {
    #[arg(long, value_enum)]
    pub(crate) only: Only,
    #[arg(long, value_enum)]
    pub(crate) space: crate::layout::Space,
}

#[derive(Debug, Args)]
pub(crate) struct Guard {
    #[arg(long)]
    pub(crate) run: String,
    #[arg(long)]
    pub(crate) watch: i32,
    #[arg(long)]
    pub(crate) start: u64,
    #[arg(long)]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[arg(long)]
    pub(crate) parent: i32,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn test_arguments_after_the_dashes_reach_cargo_unchanged() {
        let cli = Cli::try_parse_from(["dev", "test", "it", "--", "lease", "--", "--nocapture"]);
        let Ok(Cli { verb: Verb::Test(test), .. }) = cli else { panic!("not parsed: {cli:?}") };
        assert_eq!(test.suite, Some(Suite::It));
        assert_eq!(test.args, ["lease", "--", "--nocapture"]);
    }

    #[test]
    fn an_unknown_suite_is_refused_with_the_known_ones() {
        let error = Cli::try_parse_from(["dev", "test", "soak"]).unwrap_err().to_string();
        assert!(error.contains("unit, it, e2e, crash, chaos, fuzz"), "{error}");
    }
}
