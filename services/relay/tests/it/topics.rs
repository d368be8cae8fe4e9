//! `relay topics` against the broker.

use std::path::{Path, PathBuf};

use clap::Parser;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use waybill_relay::topics;
use waybill_testkit::Topics;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    config: topics::Config,
}

const DECLARED: &str = r#"
[defaults]
partitions = 4
replication = 1
min-insync-replicas = 1
cleanup-policy = "delete"
max-message-bytes = 1048576
retention = "7days"
[topics."orders.v1"]
[topics."orders.v1.point.dlt"]
retention = "30days"
"#;

struct Deployment {
    topics: Topics,
    folder: tempfile::TempDir,
}

impl Deployment {
    fn new() -> Self {
        Self { topics: Topics::none(), folder: tempfile::tempdir().expect("folder") }
    }

    fn declare(&self, text: &str) -> PathBuf {
        let path = self.folder.path().join("topics.toml");
        std::fs::write(&path, text).expect("written");
        path
    }

    async fn run(&self, verb: &str, file: &Path) -> Result<(), String> {
        let file = file.to_str().expect("utf-8");
        let (bootstrap, prefix) = (&self.topics.bootstrap, &self.topics.prefix);
        let args = ["relay", verb, "--file", file, "--kafka-bootstrap", bootstrap, "--topic-prefix", prefix];
        let config = Cli::try_parse_from(args).expect("legal").config;
        topics::run(config).await.map_err(|e| format!("{e:#}"))
    }

    async fn delete(&self) {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.topics.bootstrap);
        let admin: AdminClient<DefaultClientContext> = config.create().expect("admin");
        let names = [self.topics.name("orders.v1"), self.topics.name("orders.v1.point.dlt")];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        admin.delete_topics(&names, &AdminOptions::new()).await.expect("deletes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_created_altered_reset_and_checked_and_partitions_are_never_changed() {
    let deployment = Deployment::new();
    let file = deployment.declare(DECLARED);
    assert!(deployment.run("check", &file).await.expect_err("nothing is there").contains("not as"));
    deployment.run("plan", &file).await.expect("a plan changes nothing and ends well");
    deployment.run("apply", &file).await.expect("creates");
    deployment.run("check", &file).await.expect("as declared");
    deployment.run("apply", &file).await.expect("nothing to do");

    // Another retention; a setting more; then the setting is not declared any more and is reset.
    let with = DECLARED.replace("30days\"", "40days\"\nconfig = { \"segment.bytes\" = \"1048576\" }");
    let file = deployment.declare(&with);
    assert!(deployment.run("check", &file).await.is_err());
    deployment.run("apply", &file).await.expect("alters");
    deployment.run("check", &file).await.expect("as declared");
    let file = deployment.declare(DECLARED);
    assert!(deployment.run("check", &file).await.is_err());
    deployment.run("apply", &file).await.expect("resets");
    deployment.run("check", &file).await.expect("as declared");

    let file = deployment.declare(&DECLARED.replace("partitions = 4", "partitions = 8"));
    let message = deployment.run("apply", &file).await.expect_err("refused");
    assert!(message.contains("has 4 partitions and 8 are declared"), "{message}");
    deployment.delete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_used_is_named_with_what_is_wrong() {
    let deployment = Deployment::new();
    let missing = deployment.run("plan", Path::new("/nowhere/topics.toml")).await.expect_err("missing");
    assert!(missing.contains("/nowhere/topics.toml") && missing.contains("--file"), "{missing}");
    let unknown = deployment.declare(&format!("{DECLARED}partition = 3\n"));
    let unknown = deployment.run("plan", &unknown).await.expect_err("unknown field");
    assert!(unknown.contains("line 12") && unknown.contains("partition"), "{unknown}");
    let broken = deployment.declare("[defaults\n");
    assert!(deployment.run("apply", &broken).await.expect_err("broken").contains("line 1"));
}
