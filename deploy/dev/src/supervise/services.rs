//! Databases, migrations, topics, and the services in their order.

use std::{ffi::OsString, path::Path, time::Duration};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::{
    events::step,
    stack::Stack,
    unit::{Probe, Spec},
};
use crate::{
    infra::{
        Source,
        databases::{self, Server},
    },
    services::{METRICS_ABOVE, Service, Settings},
};

/// Topics as code, relative to the root.
const TOPICS: &str = "deploy/kafka/topics.toml";
/// A service is ready when its groups are assigned, which takes a few seconds on a loaded machine.
const READY_PATIENCE: Duration = Duration::from_secs(90);
/// The bound of a service's own shutdown.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

type Env = Vec<(&'static str, OsString)>;

/// Brings up everything above PostgreSQL and Kafka.
pub(crate) fn start(stack: &mut Stack) -> Result<()> {
    let plan = plan(stack)?;
    step("Creating databases");
    let database = stack.status.database.clone().context("no database server")?;
    let server = Server::new(&stack.state.workspace, stack.status.mode.postgres, &database.admin_url)?;
    server.check(&databases::SERVICES)?;
    for name in databases::SERVICES {
        server.create(name)?;
    }
    for (service, _, env) in &plan {
        step(format!("Migrating {}", service.name()));
        let words = words(stack, *service, &["migrate"])?;
        stack.job(&format!("{}-migrate", service.name()), &words, env)?;
    }
    step("Creating topics");
    for (service, _, env) in plan.iter().filter(|(service, ..)| *service == Service::Relay) {
        let words = words(stack, *service, &["topics", "apply", "--file", TOPICS])?;
        stack.job("topics", &words, env)?;
    }
    step("Starting order, point, notification, relay and console");
    for (service, port, env) in plan {
        serve(stack, service, port, env)?;
    }
    stack.wait_ready(READY_PATIENCE)
}

fn plan(stack: &mut Stack) -> Result<Vec<(Service, u16, Env)>> {
    let database = stack.status.database.clone().context("no database server")?;
    let kafka = stack.status.kafka.clone().context("no broker")?;
    let (topic_prefix, jwt) = (stack.status.topic_prefix.clone(), stack.status.jwt_dir.clone());
    // All ports first: the console is told where the others are.
    let mut apis = Vec::new();
    for service in Service::ALL {
        let port = stack.ports.choose(service.name(), Some(service.port()), Some(METRICS_ABOVE))?;
        apis.push((service, port));
    }
    let settings = Settings {
        database: &database,
        bootstrap: &kafka.bootstrap,
        given_kafka: stack.status.mode.kafka == Source::Environment,
        topic_prefix: &topic_prefix,
        jwt: Path::new(&jwt),
        apis: &apis,
    };
    Ok(apis.iter().map(|(service, port)| (*service, *port, settings.of(*service, *port))).collect())
}

fn words(stack: &Stack, service: Service, args: &[&str]) -> Result<Vec<OsString>> {
    let binary = stack.state.workspace.binary(service.binary())?;
    Ok([binary.into()].into_iter().chain(args.iter().map(OsString::from)).collect())
}

fn serve(stack: &mut Stack, service: Service, port: u16, env: Env) -> Result<()> {
    let command = words(stack, service, &["serve"])?;
    stack.add(Spec {
        name: service.name(),
        command,
        env,
        probe: Probe::Http(port),
        // The relay outlives the services, so that what they commit last is still published.
        phase: if service == Service::Relay { 1 } else { 0 },
        stop: Signal::TERM,
        patience: STOP_PATIENCE,
        http: Some(port),
    })
}
