//! A Kafka broker of one's own, for tests that stop and restart it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{RUN, free_address};

/// Environment variable with the folder of Apache Kafka's jars; without it the folder that `cargo dev` keeps them in.
pub const JARS: &str = "WAYBILL_KAFKA_JARS";

/// A broker that is its own controller, on a free port of the loopback; gone with this value.
#[derive(Debug)]
pub struct Broker {
    address: SocketAddr,
    folder: tempfile::TempDir,
    process: Option<std::process::Child>,
}

impl Broker {
    /// A broker that answers.
    ///
    /// # Panics
    /// Without Java or Kafka's jars.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (address, controller) = (free_address(), free_address());
        let settings = settings(address, controller, &folder.path().join("data"));
        std::fs::write(folder.path().join("server.properties"), settings).expect("settings");
        let mut broker = Self { address, folder, process: None };
        let formatted = broker
            .java("64m")
            .args(["kafka.tools.StorageTool", "format", "-t", "V2F5YmlsbENoYW9zQnJva2", "-c"])
            .arg(broker.file("server.properties"))
            .status();
        assert!(formatted.is_ok_and(|status| status.success()), "the broker's storage cannot be formatted");
        broker.resume().await;
        broker
    }

    /// For `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        self.address.to_string()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.kill());
            drop(process.wait());
        }
    }

    /// Starts it again, with its data and on its port, and waits until it answers.
    ///
    /// # Panics
    /// When it does not come back; with its log.
    pub async fn resume(&mut self) {
        let log =
            std::fs::OpenOptions::new().create(true).append(true).open(self.file("log")).expect("log file");
        let mut command = self.java("320m");
        command.arg("kafka.Kafka").arg(self.file("server.properties"));
        command.stdout(log.try_clone().expect("log file")).stderr(log);
        self.process = Some(command.spawn().expect("Java starts"));
        let bootstrap = self.bootstrap();
        crate::eventually(async || {
            let bootstrap = bootstrap.clone();
            let asked =
                tokio::task::spawn_blocking(move || crate::topics::answers(&bootstrap)).await.expect("asks");
            asked.map_err(|error| format!("{error}\n{}", self.log()))
        })
        .await;
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.file("data")
    }

    fn java(&self, heap: &str) -> Command {
        // The kernel ends the broker with the test binary, also when that is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "java"]).arg(format!("-Xmx{heap}"));
        command.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]).arg(jars().join("*"));
        command
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.envs(std::env::var_os(RUN).map(|run| (RUN, run)));
        command
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.file("log")).unwrap_or_default();
        log.lines().rev().take(20).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

fn jars() -> PathBuf {
    let kept =
        || Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(|root| root.join(".dev/kafka/jars"));
    let folder = std::env::var_os(JARS).map(PathBuf::from).or_else(kept).expect("a folder");
    assert!(
        folder.is_dir(),
        "Kafka's jars are not in {}: `WAYBILL_INFRA=native cargo dev up --only infra` fetches them",
        folder.display()
    );
    folder
}

fn settings(address: SocketAddr, controller: SocketAddr, data: &Path) -> String {
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{controller}
listeners=PLAINTEXT://{address},CONTROLLER://{controller}
advertised.listeners=PLAINTEXT://{address}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
auto.create.topics.enable=false
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
",
        data.display()
    )
}
