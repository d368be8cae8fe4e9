//! The description against the real service: schemathesis makes requests of it, good and bad, and checks every answer.
//!
//! Needs python3; the tool is installed once into `target/python-venv-schemathesis`.

#[path = "../it/app.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod app;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use app::TestApp;

/// Pinned: another version finds other things.
const TOOL: &str = "schemathesis==4.32.5";
const MAX_SECONDS: u64 = 60;
/// One thread: CPython before 3.11.8 counts the depth of its syntax trees for all threads together, and hypothesis
/// reads sources with them, so two threads fail at random with "AST constructor recursion depth mismatch"
/// (python/cpython#106905).
const WORKERS: u8 = 1;

fn venv() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target").join("python-venv-schemathesis")
}

async fn run(command: &mut Command) -> (bool, String) {
    let output = command.kill_on_drop(true).output();
    let output = tokio::time::timeout(Duration::from_secs(300), output).await.expect("ends").expect("starts");
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.success(), text)
}

/// The tool, installed when it is missing.
async fn tool() -> PathBuf {
    let tool = venv().join("bin/schemathesis");
    let marker = venv().join(TOOL);
    if !marker.exists() {
        let (made, text) = run(Command::new("python3").args(["-m", "venv"]).arg(venv())).await;
        assert!(made, "python3 -m venv failed: {text}");
        let (installed, text) =
            run(Command::new(venv().join("bin/pip")).args(["install", "--quiet", TOOL])).await;
        assert!(installed, "pip install {TOOL} failed: {text}");
        std::fs::write(marker, "").expect("marker");
    }
    tool
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_keeps_what_its_description_promises() {
    let tool = tool().await;
    // The tool sends as fast as it can, with one token.
    let app = TestApp::start_with(&["--rate-limit", "0"]).await;
    let token = app.issuer.token(app.customer, "customer");
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract/schemathesis.toml");
    let folder = tempfile::tempdir().expect("folder");
    let (kept, text) = run(Command::new(tool)
        .arg("--config-file")
        .arg(config)
        .args(["run", &format!("{}/openapi.json", app.base)])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(["--checks", "all", "--max-examples", "40", "--seed", "1"])
        .args(["--workers", &WORKERS.to_string()])
        .args(["--max-time", &MAX_SECONDS.to_string(), "--continue-on-failure", "--no-color"])
        .current_dir(folder.path()))
    .await;
    println!("{}", text.replace(&token, "<token>"));
    assert!(kept, "violations, see above");
    assert!(app.count("orders").await > 0, "no request of the tool placed an order");
}
