//! Apache Kafka on the local Java, from the jars that Maven resolves once.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::layout::{Space, State, Workspace};

/// What Maven resolves: the broker with its log back end.
const POM: &str = r#"<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>waybill</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.3.1</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version></dependency>
  </dependencies>
</project>
"#;

/// Errors and warnings are for the log, the rest is noise.
const LOG4J: &str = "status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
";

/// Whether the jars are there.
pub(crate) fn has_jars(workspace: &Workspace) -> bool {
    workspace.jars().join("complete").is_file()
}

/// Serialises the download between the stacks of one checkout.
pub(crate) fn lock_jars(workspace: &Workspace) -> Result<File> {
    let folder = workspace.dev().join("kafka");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let file = File::create(folder.join("jars.lock")).context("creating the lock of Kafka's jars")?;
    file.lock().context("locking Kafka's jars")?;
    Ok(file)
}

/// Writes the pom and returns the command that copies the jars beside their final place.
pub(crate) fn fetch_jars(workspace: &Workspace) -> Result<Vec<OsString>> {
    let folder = workspace.dev().join("kafka");
    let (pom, new) = (folder.join("pom.xml"), folder.join("jars.new"));
    let _ = fs::remove_dir_all(&new);
    fs::write(&pom, POM).with_context(|| format!("writing {}", pom.display()))?;
    let mut output: OsString = "-DoutputDirectory=".into();
    output.push(&new);
    Ok(vec![
        "mvn".into(),
        "-B".into(),
        "-f".into(),
        pom.into(),
        "dependency:copy-dependencies".into(),
        output,
    ])
}

/// To be called when Maven has succeeded.
pub(crate) fn fetched_jars(workspace: &Workspace) -> Result<()> {
    let (new, jars) = (workspace.dev().join("kafka/jars.new"), workspace.jars());
    fs::write(new.join("complete"), "").with_context(|| format!("completing {}", new.display()))?;
    let _ = fs::remove_dir_all(&jars);
    fs::rename(&new, &jars).with_context(|| format!("moving the jars to {}", jars.display()))
}

/// A native broker, not yet started.
#[derive(Debug)]
pub(crate) struct Native {
    folder: PathBuf,
    jars: PathBuf,
    port: u16,
    controller_port: u16,
    heap: &'static str,
    session: u16,
}

impl Native {
    /// A broker that is its own controller.
    pub(crate) fn new(state: &State, port: u16, controller_port: u16) -> Self {
        // Tests create many topics at once; 256 MB are enough for the few of a developer.
        // A broker that was killed may come back only when its old session is over (9 s by default): short where a
        // person waits, long where a loaded machine must not fence a broker in the middle of a test.
        let (heap, session) = match state.space {
            Space::Dev => ("-Xmx256m", 3000),
            Space::Test => ("-Xmx448m", 9000),
        };
        Self { folder: state.kafka(), jars: state.workspace.jars(), port, controller_port, heap, session }
    }

    /// Where it will answer.
    pub(crate) fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Writes the settings; on every start, because ports may have changed.
    pub(crate) fn configure(&self) -> Result<()> {
        fs::create_dir_all(&self.folder).with_context(|| format!("creating {}", self.folder.display()))?;
        write(&self.folder.join("log4j2.properties"), LOG4J)?;
        write(&self.properties(), &self.settings())
    }

    /// Whether the folder has been formatted to the end.
    pub(crate) fn is_formatted(&self) -> bool {
        self.stamp().is_file()
    }

    /// Removes what an interrupted format left and returns the command that formats.
    pub(crate) fn format(&self) -> Result<Vec<OsString>> {
        let data = self.folder.join("data");
        if data.exists() {
            fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))?;
        }
        let mut command = self.java("-Xmx128m");
        // Any 22 characters of URL-safe base64 are a cluster id; the folder is private, so one is as good as another.
        command.extend(
            ["kafka.tools.StorageTool", "format", "-t", "V2F5YmlsbERldmVsb3Btbg", "-c"].map(Into::into),
        );
        command.push(self.properties().into());
        Ok(command)
    }

    /// To be called when the format has succeeded.
    pub(crate) fn formatted(&self) -> Result<()> {
        write(&self.stamp(), "")
    }

    /// The broker's command line.
    pub(crate) fn serve(&self) -> Vec<OsString> {
        let mut command = self.java(self.heap);
        command.extend(["kafka.Kafka".into(), self.properties().into()]);
        command
    }

    fn java(&self, heap: &str) -> Vec<OsString> {
        let mut log4j: OsString = "-Dlog4j2.configurationFile=".into();
        log4j.push(self.folder.join("log4j2.properties"));
        let mut command: Vec<OsString> = vec!["java".into(), heap.into()];
        // Measured: the serial collector and the first compiler only halve the start and the memory.
        command.extend(["-XX:+UseSerialGC".into(), "-XX:TieredStopAtLevel=1".into(), log4j]);
        command.extend(["-cp".into(), self.jars.join("*").into()]);
        command
    }

    fn settings(&self) -> String {
        let (port, controller, data) = (self.port, self.controller_port, self.folder.join("data"));
        let session = self.session;
        format!(
            "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
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
auto.create.topics.enable=false
broker.session.timeout.ms={session}
broker.heartbeat.interval.ms=500
",
            data.display()
        )
    }

    fn properties(&self) -> PathBuf {
        self.folder.join("server.properties")
    }

    fn stamp(&self) -> PathBuf {
        self.folder.join("formatted")
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Whether a broker answers the request that opens every Kafka connection (ApiVersions, version 0).
pub(crate) fn answers(port: u16) -> bool {
    const REQUEST: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
    let ask = || -> std::io::Result<bool> {
        let patience = Duration::from_millis(500);
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(&REQUEST)?;
        let mut reply = [0; 10];
        stream.read_exact(&mut reply)?;
        Ok(reply[4..8] == [0, 0, 0, 7] && reply[8..10] == [0, 0])
    };
    ask().unwrap_or(false)
}

/// Refuses a list of brokers of which none accepts a connection. What they speak (TLS, SASL) is the services' affair.
pub(crate) fn reach(bootstrap: &str) -> Result<()> {
    let mut reasons = Vec::new();
    for broker in bootstrap.split(',').map(str::trim) {
        let connect = || -> std::io::Result<()> {
            let no_address = || std::io::Error::other("no such host");
            let address = broker.to_socket_addrs()?.next().ok_or_else(no_address)?;
            TcpStream::connect_timeout(&address, Duration::from_secs(5)).map(drop)
        };
        match connect() {
            Ok(()) => return Ok(()),
            Err(error) => reasons.push(format!("{broker}: {error}")),
        }
    }
    bail!("{}: no broker can be reached ({})", super::KAFKA_BOOTSTRAP, reasons.join("; "))
}
