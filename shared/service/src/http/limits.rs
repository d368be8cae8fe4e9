//! What one client may cost: time-outs and the number of connections.

use std::time::Duration;

use clap::Args;

/// Longest request head, in bytes: request line and headers. Larger ones get 431.
pub const HEADER_LIMIT: usize = 16 * 1024;

/// Bounds of the connections of one listener.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Limits {
    /// Longest time until the headers of a request are there, from its first byte, or from the opening of the
    /// connection. Too short, and slow networks are cut off; too long, and dribbling clients hold connections.
    #[arg(long, env = "HTTP_HEADER_TIMEOUT", default_value = "10s", value_parser = time)]
    pub http_header_timeout: Duration,
    /// Longest time until the body of a request is there; then 408.
    #[arg(long, env = "HTTP_BODY_TIMEOUT", default_value = "10s", value_parser = time)]
    pub http_body_timeout: Duration,
    /// How long an idle connection is kept. Must be above the idle time of a load balancer in front (commonly 60 s),
    /// else it sends requests into connections that are being closed.
    #[arg(long, env = "HTTP_KEEP_ALIVE", default_value = "75s", value_parser = time)]
    pub http_keep_alive: Duration,
    /// Connections at once. Further ones wait in the kernel's queue. Must be below the limit of open files.
    #[arg(long, env = "HTTP_MAX_CONNECTIONS", default_value_t = 2000, value_parser = connections)]
    pub http_max_connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            http_header_timeout: Duration::from_secs(10),
            http_body_timeout: Duration::from_secs(10),
            http_keep_alive: Duration::from_secs(75),
            http_max_connections: 2000,
        }
    }
}

/// At least a tenth of a second: with less, nobody is ever in time.
fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    if time < Duration::from_millis(100) {
        return Err("it must be at least 100ms".to_owned());
    }
    Ok(time)
}

fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1_000_000) => Ok(number),
        _ => Err("it must be between 1 and 1000000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        limits: Limits,
    }

    #[test]
    fn the_defaults_are_the_same_with_and_without_a_command_line() {
        let parsed = Cli::try_parse_from(["x"]).expect("defaults").limits;
        assert_eq!(format!("{parsed:?}"), format!("{:?}", Limits::default()));
        let seconds = |d: Duration| d.as_secs();
        assert_eq!(
            (
                seconds(parsed.http_header_timeout),
                seconds(parsed.http_body_timeout),
                seconds(parsed.http_keep_alive)
            ),
            (10, 10, 75)
        );
        assert_eq!(
            (parsed.http_max_connections, HEADER_LIMIT, crate::http::BODY_LIMIT),
            (2000, 16_384, 65_536)
        );
        for wrong in
            [["--http-max-connections", "0"], ["--http-keep-alive", "0s"], ["--http-body-timeout", "x"]]
        {
            assert!(Cli::try_parse_from([&["x"], &wrong[..]].concat()).is_err(), "{wrong:?}");
        }
    }
}
