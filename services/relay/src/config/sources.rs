//! The databases to relay.

use std::path::{Path, PathBuf};

use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::PgConnectOptions;
use waybill_service::{ConfigError, postgres};

use crate::source::store::{Pooler, Store};

/// The databases whose outboxes are relayed.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct Sources {
    /// One database as `name=postgres://…`; repeat it for more. `ce_source` of its events is `/name`. A secret.
    #[arg(long = "source", env = "RELAY_SOURCES", value_delimiter = ',', hide_env_values = true)]
    pub sources: Vec<SecretString>,
    /// File with the sources, separated by commas or lines, instead of RELAY_SOURCES.
    #[arg(long, env = "RELAY_SOURCES_FILE")]
    pub relay_sources_file: Option<PathBuf>,
    /// What stands between the relay and PostgreSQL. Behind a pooler in transaction mode the default fails at once;
    /// without one the other setting costs two round trips a statement.
    #[arg(long, env = "RELAY_POOLER", value_enum, default_value_t)]
    pub relay_pooler: Pooler,
}

/// One database, parsed.
#[derive(Debug, Clone)]
pub struct Database {
    /// Name of the source, also in metrics and logs.
    pub name: String,
    /// Connection options without time-outs.
    pub options: PgConnectOptions,
    /// What stands before it.
    pub pooler: Pooler,
}

impl Database {
    /// A store over it; connects when first used.
    pub fn store(&self) -> Store {
        Store::new(&self.options, self.pooler)
    }
}

impl Sources {
    /// The databases, in the order given.
    ///
    /// # Errors
    /// None given, given twice, a doubled or illegal name, a malformed URL. The message never shows a URL.
    pub fn parse(&self) -> Result<Vec<Database>, ConfigError> {
        const NAME: &str = "RELAY_SOURCES";
        let texts = self.texts(self.relay_sources_file.as_deref())?;
        let mut databases: Vec<Database> = Vec::new();
        for (place, text) in texts.iter().enumerate() {
            let Some((name, url)) = text.split_once('=') else {
                let reason = format_args!("source {} is not name=postgres://…", place + 1);
                return Err(ConfigError::invalid(NAME, reason));
            };
            let name = name.trim();
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            if name.is_empty() || !name.chars().all(legal) {
                let reason = format_args!(
                    "source {}: a name has lower-case letters, digits and '-' only, not {name:?}",
                    place + 1
                );
                return Err(ConfigError::invalid(NAME, reason));
            }
            if databases.iter().any(|d| d.name == name) {
                return Err(ConfigError::invalid(NAME, format_args!("source {name:?} is given twice")));
            }
            let options = postgres::parse(NAME, url.trim())?;
            databases.push(Database { name: name.to_owned(), options, pooler: self.relay_pooler });
        }
        if databases.is_empty() {
            return Err(ConfigError::Missing { name: NAME });
        }
        Ok(databases)
    }

    fn texts(&self, file: Option<&Path>) -> Result<Vec<String>, ConfigError> {
        let Some(path) = file else {
            let texts = self.sources.iter().map(|s| s.expose_secret().trim().to_owned());
            return Ok(texts.filter(|t| !t.is_empty()).collect());
        };
        if !self.sources.is_empty() {
            return Err(ConfigError::invalid(
                "RELAY_SOURCES",
                "RELAY_SOURCES and RELAY_SOURCES_FILE are both given",
            ));
        }
        let text = std::fs::read_to_string(path).map_err(|e| {
            ConfigError::invalid("RELAY_SOURCES_FILE", format_args!("{} cannot be read: {e}", path.display()))
        })?;
        let parts = text.split([',', '\n', '\r']).map(str::trim).filter(|t| !t.is_empty());
        Ok(parts.map(str::to_owned).collect())
    }
}
