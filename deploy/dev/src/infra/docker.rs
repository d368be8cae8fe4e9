//! PostgreSQL and Kafka as containers of the root compose file.
//!
//! The compose file may take `POSTGRES_PORT` and `KAFKA_PORT`, which are free ports of this checkout; what it
//! publishes in the end is read from its effective configuration, so fixed ports work too.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::layout::{State, Workspace};

const SERVICES: [&str; 2] = ["postgres", "kafka"];

/// The compose command of this machine, if there is one.
pub(crate) fn compose() -> Option<Vec<&'static str>> {
    let candidates = [vec!["docker", "compose"], vec!["docker-compose"]];
    candidates.into_iter().find(|words| quiet(Command::new(words[0]).args(&words[1..]).arg("version")))
}

/// Why there is no usable engine; the last step fetches the images that are missing.
pub(crate) fn usable(workspace: &Workspace) -> Result<()> {
    let file = workspace.root.join("docker-compose.yml");
    ensure!(file.is_file(), "there is no docker-compose.yml");
    ensure!(found("docker"), "docker is not installed");
    ensure!(quiet(Command::new("docker").arg("info")), "no Docker engine answers");
    let compose = compose().context("there is no compose command")?;
    let mut config = command(&compose, "waybill", &file);
    let images =
        config.args(["config", "--images"]).args(SERVICES).output().context("docker compose config")?;
    ensure!(images.status.success(), "docker-compose.yml is not valid");
    let images = String::from_utf8_lossy(&images.stdout);
    let missing =
        images.lines().any(|image| !quiet(Command::new("docker").args(["image", "inspect", image])));
    if missing {
        crate::ui::note("fetching the images of PostgreSQL and Kafka (docker compose pull)");
    }
    if missing && !quiet(command(&compose, "waybill", &file).args(["pull", "-q"]).args(SERVICES)) {
        bail!("its images cannot be had");
    }
    Ok(())
}

fn found(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn quiet(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

fn command(compose: &[&str], project: &str, file: &Path) -> Command {
    let mut command = Command::new(compose[0]);
    command.args(&compose[1..]).args(["-p", project, "-f"]).arg(file);
    command
}

/// The containers of one stack.
#[derive(Debug)]
pub(crate) struct Containers {
    compose: Vec<&'static str>,
    project: String,
    file: std::path::PathBuf,
    ports: [(&'static str, String); 2],
}

impl Containers {
    /// Nothing is started yet.
    pub(crate) fn new(state: &State, postgres: u16, kafka: u16) -> Result<Self> {
        Ok(Self {
            compose: compose().context("there is no compose command")?,
            project: state.project(),
            file: state.workspace.root.join("docker-compose.yml"),
            ports: [("POSTGRES_PORT", postgres.to_string()), ("KAFKA_PORT", kafka.to_string())],
        })
    }

    /// The project's name, by which the containers are found again.
    pub(crate) fn project(&self) -> &str {
        &self.project
    }

    /// The command that starts `services` and waits until they are healthy, with its environment.
    pub(crate) fn up(&self, services: &[&str]) -> (Vec<String>, Vec<(String, String)>) {
        let mut words: Vec<String> = self.compose.iter().map(|word| (*word).to_owned()).collect();
        words.extend([
            "-p".to_owned(),
            self.project.clone(),
            "-f".to_owned(),
            self.file.display().to_string(),
        ]);
        words.extend(["up", "-d", "--wait"].into_iter().chain(services.iter().copied()).map(str::to_owned));
        (words, self.ports.iter().map(|(name, port)| ((*name).to_owned(), port.clone())).collect())
    }

    /// The superuser's URL and the bootstrap server, by what the compose file publishes.
    pub(crate) fn addresses(&self) -> Result<(String, String)> {
        let mut command = command(&self.compose, &self.project, &self.file);
        command.args(["config", "--format", "json"]).envs(self.ports.iter().map(|(name, port)| (name, port)));
        let output = command.output().context("docker compose config")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        addresses(&serde_json::from_slice(&output.stdout).context("reading docker compose config")?)
    }

    /// Removes the containers and keeps the volumes.
    pub(crate) fn down(&self) {
        quiet(command(&self.compose, &self.project, &self.file).args(["down", "--timeout", "15"]));
    }
}

/// Kills the containers of a project whose supervisor was killed.
pub(crate) fn kill(project: &str) {
    if let Some(compose) = compose() {
        quiet(Command::new(compose[0]).args(&compose[1..]).args(["-p", project, "kill"]));
    }
}

fn addresses(config: &Value) -> Result<(String, String)> {
    let published = |service: &str, target: Option<u64>| {
        let ports = config.pointer(&format!("/services/{service}/ports"))?.as_array()?;
        let port = ports.iter().find(|port| target.is_none() || port["target"].as_u64() == target)?;
        port["published"]
            .as_str()
            .map(str::to_owned)
            .or_else(|| Some(port["published"].as_u64()?.to_string()))
    };
    let postgres =
        published("postgres", Some(5432)).context("docker-compose.yml publishes no port of postgres")?;
    let kafka = published("kafka", None).context("docker-compose.yml publishes no port of kafka")?;
    let env = |name: &str| config.pointer(&format!("/services/postgres/environment/{name}"))?.as_str();
    let user = env("POSTGRES_USER").unwrap_or("postgres");
    let password = env("POSTGRES_PASSWORD").map(|word| format!(":{word}")).unwrap_or_default();
    let database = env("POSTGRES_DB").unwrap_or(user);
    let admin = super::url::admin(&format!("postgres://{user}{password}@127.0.0.1:{postgres}/{database}"));
    Ok((admin, format!("127.0.0.1:{kafka}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_the_effective_configuration() {
        let config = serde_json::json!({"services": {
            "postgres": {"environment": {"POSTGRES_USER": "waybill", "POSTGRES_PASSWORD": "waybill"},
                         "ports": [{"target": 5432, "published": "25000"}]},
            "kafka": {"ports": [{"target": 9092, "published": "25001"}]}}});
        let (admin, bootstrap) = addresses(&config).unwrap();
        assert_eq!(admin, "postgres://waybill:waybill@127.0.0.1:25000/waybill");
        assert_eq!(bootstrap, "127.0.0.1:25001");
        assert!(addresses(&serde_json::json!({"services": {}})).is_err());
    }
}
