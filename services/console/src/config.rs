//! Settings. The doc comments are the text of `--help`.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use reqwest::Url;
use waybill_service::{ConfigError, auth, http, jobs, kafka, postgres, telemetry};

/// Everything that `serve` can be told.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Config {
    /// Addresses.
    #[command(flatten)]
    pub http: http::Config,
    /// Database.
    #[command(flatten)]
    pub postgres: postgres::Config,
    /// Kafka.
    #[command(flatten)]
    pub kafka: kafka::Config,
    /// Tokens.
    #[command(flatten)]
    pub auth: auth::Config,
    /// Scheduled jobs.
    #[command(flatten)]
    pub jobs: jobs::Config,
    /// Logs, traces and metrics.
    #[command(flatten)]
    pub telemetry: telemetry::Config,
    /// The console's own.
    #[command(flatten)]
    pub console: Settings,
}

/// The console's own settings.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Settings {
    /// Consuming services, `name=url` separated by commas: they are asked what they know of a message before it is
    /// replayed, with the operator's own token. A group of a service that is missing here cannot be replayed.
    #[arg(long = "service", env = "CONSOLE_SERVICES", value_delimiter = ',')]
    pub services: Vec<ServiceAddress>,
    /// Further dead-letter topics by regular expression, `^` first, for example `^.*-dlt$` for Spring's. Topics that end
    /// in `.dlt` and begin with the prefix are always read.
    #[arg(long = "dlt-pattern", env = "CONSOLE_DLT_PATTERNS", value_delimiter = ',')]
    pub dlt_patterns: Vec<String>,
    /// How often the broker is asked for new topics and their retention. Longer, and a new dead-letter topic is found
    /// later; shorter, and brokers with thousands of topics have more to tell.
    #[arg(long, env = "CONSOLE_TOPIC_REFRESH", default_value = "30s", value_parser = humantime::parse_duration)]
    pub topic_refresh: Duration,
    /// Replays of one message; then it is left out of plans and listed by `dlt loops`. Higher, and a message that can
    /// never succeed costs more before somebody looks at it.
    #[arg(long, env = "CONSOLE_LOOP_CAP", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=100))]
    pub loop_cap: i32,
    /// How long a replayed message may stay without outcome; then its run goes on without it, and it can be planned
    /// again. Shorter than the consumer's lag, messages are sent twice (and handled once).
    #[arg(long, env = "CONSOLE_OUTCOME_TIMEOUT", default_value = "10m", value_parser = humantime::parse_duration)]
    pub outcome_timeout: Duration,
    /// How long a replay of a process that died waits for another process. A record may be on its way for half of it,
    /// so shorter, and a slow broker makes sends fail; longer, and a run stands still for longer.
    #[arg(long, env = "CONSOLE_REPLAY_LEASE", default_value = "20s", value_parser = humantime::parse_duration)]
    pub replay_lease: Duration,
    /// Headers that a replay leaves out, `*` at the end stands for anything: what replicators and brokers use for
    /// themselves, and what would make them drop the copy.
    #[arg(
        long = "denied-header",
        env = "CONSOLE_DENIED_HEADERS",
        value_delimiter = ',',
        default_value = "__*"
    )]
    pub denied_headers: Vec<String>,
    /// Page of a trace, `{trace_id}` in it, for example `http://127.0.0.1:16686/trace/{trace_id}`.
    #[arg(long, env = "CONSOLE_TRACE_URL")]
    pub trace_url: Option<String>,
}

/// A consuming service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAddress {
    /// What answers and errors call it.
    pub name: String,
    /// Its API.
    pub url: Url,
}

impl FromStr for ServiceAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, url) = text.trim().split_once('=').ok_or("it is not name=url")?;
        let url: Url = url.parse().map_err(|error| format!("{url:?} is not a URL: {error}"))?;
        if name.is_empty() || !url.has_host() || !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{text:?} is not name=url with a URL of http or https"));
        }
        Ok(Self { name: name.to_owned(), url })
    }
}

/// Shortest lease of a replay.
const MIN_LEASE: Duration = Duration::from_secs(2);

impl Config {
    /// Checks what needs no I/O.
    ///
    /// # Errors
    /// Names the setting.
    pub fn check(&self) -> Result<(), ConfigError> {
        let console = &self.console;
        if let Some(wrong) = console.dlt_patterns.iter().find(|pattern| !pattern.starts_with('^')) {
            return Err(ConfigError::invalid(
                "CONSOLE_DLT_PATTERNS",
                format_args!("{wrong:?} lacks ^ in front"),
            ));
        }
        if console.topic_refresh < Duration::from_millis(100) {
            return Err(ConfigError::invalid("CONSOLE_TOPIC_REFRESH", "it is below 100 ms"));
        }
        if console.replay_lease < MIN_LEASE {
            return Err(ConfigError::invalid("CONSOLE_REPLAY_LEASE", "it is below 2 s"));
        }
        let mut names: Vec<_> = console.services.iter().map(|service| &service.name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ConfigError::invalid(
                "CONSOLE_SERVICES",
                format_args!("{} is there twice", twice[0]),
            ));
        }
        self.kafka.client_settings().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_a_name_and_a_url() {
        let service: ServiceAddress = "point=http://127.0.0.1:8081".parse().unwrap();
        assert_eq!((service.name.as_str(), service.url.port()), ("point", Some(8081)));
        for wrong in ["point", "=http://h", "point=h:1", "point=ftp://h", "point="] {
            assert!(wrong.parse::<ServiceAddress>().is_err(), "{wrong}");
        }
    }
}
