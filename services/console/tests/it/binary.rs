//! The real binary: its verbs, its signals, and what it tells about itself.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use waybill_testkit::process::{Process, free_address};
use waybill_testkit::{Database, eventually};

use crate::fixture::{Dead, Fixture};

#[tokio::test]
async fn it_migrates_serves_counts_and_stops_at_a_signal() {
    let fixture = Fixture::new().await;
    let (database, folder) = (Database::create(&[]).await, tempfile::tempdir().expect("folder"));
    let (api, metrics) = (free_address(), free_address());
    let mut settings = fixture.settings();
    for (name, value) in [
        ("DATABASE_URL", database.url.clone()),
        ("HTTP_LISTEN", api.to_string()),
        ("METRICS_LISTEN", metrics.to_string()),
        ("JOBS", "purge-console".to_owned()),
    ] {
        settings.retain(|(known, _)| known != name);
        settings.push((name.to_owned(), value));
    }
    let run = |verb: &str, log: &Path| Process::start("waybill-console", &[verb], &settings, log);
    let log = |name: &str| folder.path().join(name);
    let mut early = run("serve", &log("early"));
    assert_eq!(early.ended().await, Some(1));
    assert!(early.log().contains("waybill-console migrate"), "{}", early.log());
    assert_eq!(run("healthcheck", &log("probe")).ended().await, Some(1));
    for _ in 0..2 {
        assert_eq!(run("migrate", &log("migrate")).ended().await, Some(0));
    }
    let mut service = run("serve", &log("serve"));
    eventually(async || match run("healthcheck", &log("probe")).ended().await {
        Some(0) => Ok(()),
        code => Err((code, service.log())),
    })
    .await;
    Dead::new("k").produce(&fixture.topics).await;
    let topic = fixture.topics.name(crate::fixture::DLT);
    eventually(async || {
        let response = reqwest::get(format!("http://{metrics}/metrics")).await.map_err(|e| e.to_string())?;
        let text = response.text().await.map_err(|e| e.to_string())?;
        let told = [
            format!("waybill_console_dead_letters_open{{topic=\"{topic}\"}} 1\n"),
            "waybill_console_indexed_total 1\n".to_owned(),
            "waybill_console_replayed_total{result=\"sent\"} 0\n".to_owned(),
        ];
        // Labels of the scope stand beside ours.
        let has = |line: &String| {
            let (name, value) = line.trim_end().rsplit_once(' ').expect("a value");
            let (name, label) = name.split_once('{').unwrap_or((name, ""));
            let label = label.trim_end_matches('}');
            text.lines()
                .any(|l| l.starts_with(name) && l.contains(label) && l.ends_with(&format!(" {value}")))
        };
        if told.iter().all(has) { Ok(()) } else { Err(text) }
    })
    .await;
    let docs = reqwest::get(format!("http://{api}/openapi.json")).await.expect("answers");
    assert!(docs.status().is_success());
    let pid = service.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("runs");
    kill_process(pid, Signal::TERM).expect("signal");
    assert_eq!(service.ended().await, Some(0), "{}", service.log());
}
