//! PostgreSQL and Kafka: from the environment, from Docker, or native.

pub(crate) mod databases;
pub(crate) mod docker;
pub(crate) mod kafka;
pub(crate) mod postgres;
pub(crate) mod url;

use std::{env, fmt};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::{layout::Workspace, ui};

/// The one way to name a server. `DATABASE_URL` is not read: whoever works on another project has it exported too.
pub(crate) const DATABASE_URL: &str = "WAYBILL_DATABASE_URL";
/// The same for brokers.
pub(crate) const KAFKA_BOOTSTRAP: &str = "WAYBILL_KAFKA_BOOTSTRAP";

/// Whence a server comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    /// Its address was given; it is used and never started or stopped.
    Environment,
    /// A container of the root compose file.
    Docker,
    /// A process of the supervisor.
    Native,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Environment => "from the environment",
            Self::Docker => "docker",
            Self::Native => "native",
        })
    }
}

/// What the user's environment says about the servers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Given {
    /// [`DATABASE_URL`]
    pub(crate) database: Option<String>,
    /// [`KAFKA_BOOTSTRAP`]
    pub(crate) kafka: Option<String>,
    /// `WAYBILL_INFRA`
    pub(crate) forced: Option<Source>,
}

impl Given {
    /// Reads the environment; empty counts as absent.
    pub(crate) fn read() -> Result<Self> {
        let var = |name| env::var(name).ok().filter(|value: &String| !value.is_empty());
        let forced = match var("WAYBILL_INFRA").as_deref() {
            None | Some("auto") => None,
            Some("native") => Some(Source::Native),
            Some("docker") => Some(Source::Docker),
            Some(other) => bail!("WAYBILL_INFRA is {other:?}; it may be auto, native or docker"),
        };
        let database = var(DATABASE_URL);
        if let Some(url) = &database {
            url::check(url)?;
        }
        Ok(Self { database, kafka: var(KAFKA_BOOTSTRAP), forced })
    }

    /// The database server, without a password.
    fn shown(&self) -> Option<String> {
        self.database.as_deref().map(url::shown)
    }
}

/// Which source each server has, and why it is not Docker if it might have been.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) given: Given,
    pub(crate) postgres: Source,
    pub(crate) kafka: Source,
    pub(crate) why_native: Option<String>,
}

impl Plan {
    /// What the environment and this machine come to.
    pub(crate) fn of(workspace: &Workspace, with_kafka: bool) -> Result<Self> {
        choose(Given::read()?, with_kafka, || docker::usable(workspace))
    }

    /// Says which servers will be used, and why.
    pub(crate) fn tell(&self, with_kafka: bool) {
        ui::note(&format!("PostgreSQL: {}", self.why(self.postgres, DATABASE_URL, self.given.shown())));
        if with_kafka {
            ui::note(&format!("Kafka: {}", self.why(self.kafka, KAFKA_BOOTSTRAP, self.given.kafka.clone())));
        }
        let is_set = |name: &&str| env::var_os(name).is_some_and(|value| !value.is_empty());
        for name in ["DATABASE_URL", "KAFKA_BOOTSTRAP", "TOPIC_PREFIX"].iter().filter(|name| is_set(name)) {
            ui::note(&format!("{name} is set and not used, it may be another project's"));
        }
    }

    fn why(&self, source: Source, variable: &str, given: Option<String>) -> String {
        match source {
            Source::Environment => format!("{}, because {variable} names it", given.unwrap_or_default()),
            Source::Docker => format!("a container of this checkout's own; {variable} would name another"),
            Source::Native => {
                let reason = self.why_native.as_deref().unwrap_or_default();
                format!("a process of this checkout's own ({reason}); {variable} would name another")
            }
        }
    }
}

/// The rule. `docker` tells why there is none, and is asked only if it matters.
fn choose(given: Given, with_kafka: bool, docker: impl FnOnce() -> Result<()>) -> Result<Plan> {
    // Nobody will ask a broker that is not wanted.
    let (postgres, kafka) = (given.database.is_some(), given.kafka.is_some() || !with_kafka);
    let (rest, why_native) = match given.forced {
        _ if postgres && kafka => (Source::Environment, None),
        Some(Source::Docker) => docker().map(|()| (Source::Docker, None))?,
        Some(source) => (source, Some("WAYBILL_INFRA=native".to_owned())),
        None => match docker() {
            Ok(()) => (Source::Docker, None),
            Err(reason) => (Source::Native, Some(format!("{reason:#}"))),
        },
    };
    let or_given = |given| if given { Source::Environment } else { rest };
    Ok(Plan { postgres: or_given(postgres), kafka: or_given(kafka), why_native, given })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(database: bool, kafka: bool, forced: Option<Source>) -> Given {
        Given {
            database: database.then(|| "postgres://x/y".into()),
            kafka: kafka.then(|| "x:1".into()),
            forced,
        }
    }

    #[test]
    fn the_environment_wins_and_docker_is_not_asked() {
        let plan = choose(given(true, true, None), true, || panic!("asked")).unwrap();
        assert_eq!((plan.postgres, plan.kafka), (Source::Environment, Source::Environment));
    }

    #[test]
    fn one_may_be_given_without_the_other() {
        let plan = choose(given(true, false, None), true, || Ok(())).unwrap();
        assert_eq!((plan.postgres, plan.kafka), (Source::Environment, Source::Docker));
        let plan = choose(given(false, true, None), true, || bail!("no engine")).unwrap();
        assert_eq!((plan.postgres, plan.kafka), (Source::Native, Source::Environment));
    }

    #[test]
    fn a_broker_that_is_not_wanted_needs_no_decision() {
        let plan = choose(given(true, false, None), false, || panic!("asked")).unwrap();
        assert_eq!(plan.postgres, Source::Environment);
    }

    #[test]
    fn native_says_why() {
        let plan = choose(given(false, false, None), true, || bail!("no engine")).unwrap();
        assert_eq!(plan.why_native.as_deref(), Some("no engine"));
    }

    #[test]
    fn docker_that_was_demanded_and_is_missing_is_an_error() {
        assert!(choose(given(false, false, Some(Source::Docker)), true, || bail!("no engine")).is_err());
    }
}
