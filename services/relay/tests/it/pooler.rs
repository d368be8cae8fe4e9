//! Behind PgBouncer in transaction mode.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Instant;

use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;
use waybill_outbox::Hint;

use crate::support::{World, becomes};

/// A PgBouncer that ends with this value.
struct PgBouncer {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl PgBouncer {
    /// Starts one before the server of a database.
    fn start(url: &str) -> Self {
        let server = PgConnectOptions::from_str(url).expect("URL");
        let folder = tempfile::tempdir().expect("folder");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("free port").port();
        let config = format!(
            "[databases]\n* = host={} port={} user={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 8\n\
             ignore_startup_parameters = extra_float_digits\n",
            server.get_host(),
            server.get_port(),
            server.get_username(),
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, config).expect("written");
        for (path, mode) in [(folder.path(), 0o755), (file.as_path(), 0o644)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("readable");
        }
        let child = command(&binary(), &file).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self { child: child.expect("pgbouncer starts"), port, _folder: folder }
    }

    /// The database's URL through it.
    fn url(&self, url: &str) -> String {
        let port = PgConnectOptions::from_str(url).expect("URL").get_port();
        url.replace(&format!(":{port}/"), &format!(":{}/", self.port))
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn binary() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    places
        .map(|place| place.join("pgbouncer"))
        .find(|file| file.is_file())
        .expect("pgbouncer is missing: run cargo dev setup")
}

/// It refuses root, as PostgreSQL does.
fn command(binary: &Path, config: &Path) -> Command {
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !root {
        let mut command = Command::new(binary);
        command.arg(config);
        return command;
    }
    let mut command = Command::new("setpriv");
    let caps = "+dac_override,+dac_read_search";
    command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--pdeathsig", "KILL"]);
    command.args(["--inh-caps", caps, "--ambient-caps", caps]).arg(binary).arg(config);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_in_transaction_mode_leases_work_and_a_lost_hint_costs_latency_only() {
    let world = World::new(&["orders.v1"]).await;
    let bouncer = PgBouncer::start(&world.database.url);
    let url = bouncer.url(&world.database.url);
    let source = [("order", url.as_str())];
    let quick = ["--relay-pooler", "transaction", "--relay-lease-renew", "200ms"];
    let first = world.relay_at(&source, &world.topics.bootstrap, &quick).await;
    let second = world.relay_at(&source, &world.topics.bootstrap, &quick).await;
    first.wait_for(|s| &s.buckets, 32).await;
    second.wait_for(|s| &s.buckets, 32).await;
    let epochs = async || -> i64 {
        sqlx::query_scalar("select sum(epoch)::bigint from messaging.relay_lease")
            .fetch_one(world.pool())
            .await
            .expect("sums")
    };
    let before = epochs().await;
    world.write("orders.v1", 40, 25).await;
    world.wait_for_count("sent_at is null", 0).await;
    assert_eq!(world.assert_order_and_completeness("orders.v1").await.len(), 1_000, "no row has two owners");
    assert_eq!(epochs().await, before, "no lease changes hands");

    // The bell is accepted and may never be heard.
    let stop = CancellationToken::new();
    let hint = Hint::start((*world.pool().connect_options()).clone(), stop.clone());
    let started = Instant::now();
    world.append("orders.v1", "k", b"x").await;
    hint.ring();
    world.wait_for_count("sent_at is null", 0).await;
    println!("published after {:?}", started.elapsed());
    first.ready().await.expect("ready");
    stop.cancel();
    first.stop().await;
    second.wait_for(|s| &s.buckets, 64).await;
    second.stop().await;

    // Without the setting it says what the pooler does not take.
    let wrong = world.relay_at(&source, &world.topics.bootstrap, &[]).await;
    becomes(true, async || wrong.ready().await.is_err_and(|e| e.contains("options"))).await;
    wrong.stop().await;
}
