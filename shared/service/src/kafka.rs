//! Address and security of the Kafka cluster. Everything else about a client belongs to the crate that owns it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use secrecy::{ExposeSecret, SecretString};

use crate::{ConfigError, secret};

/// How to reach Kafka.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Config {
    /// Comma-separated `host:port` of the brokers to ask first.
    #[arg(long, env = "KAFKA_BOOTSTRAP", default_value = "127.0.0.1:9092")]
    pub kafka_bootstrap: String,
    /// How the connection is protected. SSL and SASL need a build of librdkafka with OpenSSL.
    #[arg(long, env = "KAFKA_SECURITY_PROTOCOL", value_enum, default_value_t = SecurityProtocol::Plaintext)]
    pub kafka_security_protocol: SecurityProtocol,
    /// Certificate authority of the brokers, a PEM file.
    #[arg(long, env = "KAFKA_SSL_CA")]
    pub kafka_ssl_ca: Option<PathBuf>,
    /// SASL mechanism.
    #[arg(long, env = "KAFKA_SASL_MECHANISM", default_value = "SCRAM-SHA-512")]
    pub kafka_sasl_mechanism: String,
    /// SASL user.
    #[arg(long, env = "KAFKA_SASL_USERNAME")]
    pub kafka_sasl_username: Option<String>,
    /// SASL password. A secret.
    #[arg(long, env = "KAFKA_SASL_PASSWORD", hide_env_values = true)]
    pub kafka_sasl_password: Option<SecretString>,
    /// File that holds the SASL password, instead of KAFKA_SASL_PASSWORD.
    #[arg(long, env = "KAFKA_SASL_PASSWORD_FILE")]
    pub kafka_sasl_password_file: Option<PathBuf>,
    /// Goes before every topic and consumer group; for a staging system on a shared cluster, and for tests.
    #[arg(long, env = "TOPIC_PREFIX", default_value = "")]
    pub topic_prefix: String,
}

/// Values of `KAFKA_SECURITY_PROTOCOL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum SecurityProtocol {
    /// No protection.
    Plaintext,
    /// TLS.
    Ssl,
    /// SASL without TLS.
    SaslPlaintext,
    /// SASL inside TLS.
    SaslSsl,
}

impl Config {
    /// `bootstrap.servers` and the security settings, as librdkafka names them.
    ///
    /// # Errors
    /// A malformed address or prefix, or SASL without user or password.
    pub fn client_settings(&self) -> Result<Vec<(String, String)>, ConfigError> {
        self.check()?;
        let mut settings = vec![("bootstrap.servers".to_owned(), self.kafka_bootstrap.clone())];
        let protocol = match self.kafka_security_protocol {
            SecurityProtocol::Plaintext => return Ok(settings),
            SecurityProtocol::Ssl => "ssl",
            SecurityProtocol::SaslPlaintext => "sasl_plaintext",
            SecurityProtocol::SaslSsl => "sasl_ssl",
        };
        let mut set = |name: &str, value: String| settings.push((name.to_owned(), value));
        set("security.protocol", protocol.to_owned());
        if let Some(ca) = &self.kafka_ssl_ca {
            set("ssl.ca.location", ca.display().to_string());
        }
        if protocol.starts_with("sasl") {
            let user = self.kafka_sasl_username.clone();
            let password = secret::read(
                "KAFKA_SASL_PASSWORD",
                self.kafka_sasl_password.as_ref(),
                self.kafka_sasl_password_file.as_deref(),
            )?;
            set("sasl.mechanisms", self.kafka_sasl_mechanism.clone());
            set("sasl.username", user.ok_or(ConfigError::Missing { name: "KAFKA_SASL_USERNAME" })?);
            set("sasl.password", password.expose_secret().to_owned());
        }
        Ok(settings)
    }

    fn check(&self) -> Result<(), ConfigError> {
        for address in self.kafka_bootstrap.split(',') {
            let port = address.trim().rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
            if !matches!(port, Some((host, Ok(1..))) if !host.is_empty()) {
                let reason = format_args!("{address:?} is not host:port").to_string();
                return Err(ConfigError::invalid("KAFKA_BOOTSTRAP", reason));
            }
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.topic_prefix.len() > 100 || !self.topic_prefix.chars().all(legal) {
            let reason =
                "only letters, digits, '.', '_' and '-' are legal in a topic's name, at most 100 here";
            return Err(ConfigError::invalid("TOPIC_PREFIX", reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        kafka: Config,
    }

    fn settings(args: &[&str]) -> Result<Vec<(String, String)>, String> {
        let cli = Cli::try_parse_from([&["x"], args].concat()).map_err(|e| e.to_string())?;
        cli.kafka.client_settings().map_err(|e| e.to_string())
    }

    #[test]
    fn a_wrong_setting_is_named() {
        for (args, name) in [
            (&["--kafka-bootstrap", "nowhere"][..], "KAFKA_BOOTSTRAP"),
            (&["--kafka-bootstrap", "a:1,b:x"], "KAFKA_BOOTSTRAP"),
            (&["--topic-prefix", "a b"], "TOPIC_PREFIX"),
            (&["--kafka-security-protocol", "SASL_SSL", "--kafka-sasl-password", "p"], "KAFKA_SASL_USERNAME"),
            (&["--kafka-security-protocol", "SASL_SSL", "--kafka-sasl-username", "u"], "KAFKA_SASL_PASSWORD"),
        ] {
            let message = settings(args).expect_err(name);
            assert!(message.contains(name), "{message}");
        }
        assert_eq!(settings(&["--kafka-bootstrap", "a:1,b:2"]).expect("legal").len(), 1);
    }
}
