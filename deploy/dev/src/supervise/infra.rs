//! Starting PostgreSQL and Kafka.

use std::{ffi::OsString, time::Duration};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::{
    events::step,
    stack::Stack,
    unit::{Probe, Spec},
};
use crate::{
    infra::{DATABASE_URL, Plan, Source, docker::Containers, kafka, postgres, url},
    status::{Database, Kafka, Mode},
    wait,
};

/// Generous for a loaded machine: both usually take under ten seconds.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// Starts what is not given, both at once, and creates the databases' addresses.
pub(crate) fn start(stack: &mut Stack, with_kafka: bool) -> Result<()> {
    let plan = Plan::of(&stack.state.workspace, with_kafka)?;
    let given = plan.given;
    stack.status.mode = Mode { postgres: plan.postgres, kafka: plan.kafka };
    let admin = match plan.postgres {
        Source::Environment => Some(url::admin(given.database.as_deref().unwrap_or_default())),
        Source::Native => Some(native_postgres(stack)?),
        Source::Docker => None,
    };
    let bootstrap = match plan.kafka {
        Source::Environment => given.kafka.clone(),
        Source::Native => Some(native_kafka(stack)?),
        Source::Docker => None,
    };
    let (admin, bootstrap) = containers(stack, admin, bootstrap, with_kafka)?;
    step("Waiting for PostgreSQL and Kafka");
    stack.wait_ready(START_PATIENCE)?;
    check_postgres(stack, &admin)?;
    stack.status.database = Some(databases(admin));
    if with_kafka {
        kafka::reach(&bootstrap)?;
        if plan.kafka == Source::Environment {
            // Others have an `orders.v1` too. What begins with this name can only be of this checkout.
            stack.status.topic_prefix = format!("waybill-{}.", stack.state.workspace.id()?);
        }
        stack.status.kafka = Some(Kafka { bootstrap });
    }
    stack.publish()
}

fn native_postgres(stack: &mut Stack) -> Result<String> {
    let port = stack.ports.choose("postgres", None, None)?;
    let server = postgres::Native::new(&stack.state, port)?;
    if !server.is_initialized() {
        step("Making a PostgreSQL cluster below .dev/");
        stack.job("initdb", &server.initialize()?, &[])?;
        server.initialized()?;
    }
    step("Starting PostgreSQL");
    stack.add(Spec {
        name: "postgres",
        command: server.serve()?,
        env: Vec::new(),
        probe: Probe::Postgres(port),
        phase: 3,
        stop: Signal::INT,
        patience: Duration::from_secs(15),
        http: None,
    })?;
    Ok(server.admin_url())
}

fn native_kafka(stack: &mut Stack) -> Result<String> {
    let workspace = stack.state.workspace.clone();
    let jars = kafka::lock_jars(&workspace)?;
    if !kafka::has_jars(&workspace) {
        step("Fetching Apache Kafka by Maven (44 MB, once)");
        stack.job("maven", &kafka::fetch_jars(&workspace)?, &[])?;
        kafka::fetched_jars(&workspace)?;
    }
    drop(jars);
    let (port, controller) =
        (stack.ports.choose("kafka", None, None)?, stack.ports.choose("kafka-controller", None, None)?);
    let broker = kafka::Native::new(&stack.state, port, controller);
    broker.configure()?;
    if !broker.is_formatted() {
        step("Formatting Kafka's folder");
        stack.job("kafka-format", &broker.format()?, &[])?;
        broker.formatted()?;
    }
    step("Starting Kafka");
    stack.add(Spec {
        name: "kafka",
        command: broker.serve(),
        env: Vec::new(),
        probe: Probe::Kafka(port),
        phase: 2,
        stop: Signal::TERM,
        patience: Duration::from_secs(20),
        http: None,
    })?;
    Ok(broker.bootstrap())
}

/// Starts the containers of what has no address yet.
fn containers(
    stack: &mut Stack,
    admin: Option<String>,
    bootstrap: Option<String>,
    with_kafka: bool,
) -> Result<(String, String)> {
    if let (Some(admin), Some(bootstrap)) = (&admin, &bootstrap) {
        return Ok((admin.clone(), bootstrap.clone()));
    }
    let wanted = [("postgres", admin.is_none()), ("kafka", bootstrap.is_none() && with_kafka)];
    let names: Vec<&str> = wanted.into_iter().filter(|(_, wanted)| *wanted).map(|(name, _)| name).collect();
    if names.is_empty() {
        return Ok((admin.unwrap_or_default(), bootstrap.unwrap_or_default()));
    }
    let postgres = stack.ports.choose("postgres", None, None)?;
    let kafka = stack.ports.choose("kafka", None, None)?;
    let containers = Containers::new(&stack.state, postgres, kafka)?;
    step(format!("Starting containers: {}", names.join(", ")));
    // Published before they start, so that the guard knows what to kill.
    stack.status.compose_project = Some(containers.project().to_owned());
    stack.publish()?;
    let (words, env) = containers.up(&names);
    let mut line: Vec<OsString> = vec!["env".into()];
    line.extend(env.into_iter().map(|(name, port)| OsString::from(format!("{name}={port}"))));
    line.extend(words.into_iter().map(OsString::from));
    let addresses = containers.addresses();
    stack.containers = Some(containers);
    let (docker_admin, docker_bootstrap) = addresses?;
    stack.job("docker", &line, &[])?;
    Ok((admin.unwrap_or(docker_admin), bootstrap.unwrap_or(docker_bootstrap)))
}

/// A server answers a moment before it accepts sessions.
fn check_postgres(stack: &Stack, admin: &str) -> Result<()> {
    let patience = if stack.status.mode.postgres == Source::Environment { 0 } else { 30 };
    let mut failure = None;
    wait::until(Duration::from_secs(patience), Duration::from_millis(100), || {
        failure = postgres::query(admin, "select 1").err();
        failure.is_none() || stack.signals.came()
    });
    let context = match stack.status.mode.postgres {
        Source::Environment => format!("{DATABASE_URL}: the server cannot be used"),
        _ => "PostgreSQL does not accept sessions".to_owned(),
    };
    failure.map_or(Ok(()), |error| Err(error).context(context))
}

fn databases(admin_url: String) -> Database {
    Database {
        orders: url::with_database(&admin_url, "orders"),
        points: url::with_database(&admin_url, "points"),
        notifications: url::with_database(&admin_url, "notifications"),
        console: url::with_database(&admin_url, "console"),
        admin_url,
    }
}
