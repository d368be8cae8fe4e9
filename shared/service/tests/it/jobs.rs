//! Scheduled jobs over a real database.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;
use tokio_util::sync::{CancellationToken, DropGuard};
use waybill_service::jobs::{Config, Job, Jobs};
use waybill_testkit::{Database, PATIENCE, eventually};

const EVERY: Duration = Duration::from_millis(200);

#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    async fn reaches(&self, number: usize) {
        eventually(async || if self.get() >= number { Ok(()) } else { Err(self.get()) }).await;
    }
}

async fn database() -> Database {
    Database::create(&[waybill_outbox::migrator()]).await
}

/// Counts its runs.
fn counting(name: &'static str, count: &Count) -> Job {
    let count = count.clone();
    Job::new(name, EVERY, move |_| {
        count.add();
        async { Ok::<_, std::io::Error>(0) }
    })
}

fn run(database: &Database, jobs: Vec<Job>, on: &[&str]) -> DropGuard {
    run_with(database, jobs, on, Duration::from_secs(60)).0
}

fn run_with(
    database: &Database,
    jobs: Vec<Job>,
    on: &[&str],
    lease: Duration,
) -> (DropGuard, tokio::task::JoinHandle<()>) {
    let config = Config { jobs: on.iter().map(ToString::to_string).collect() };
    let jobs = Jobs::new(database.pool.clone(), jobs, &config).expect("known").with_lease(lease);
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(jobs.run(shutdown.clone()));
    (shutdown.drop_guard(), running)
}

async fn execute(database: &Database, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&database.pool).await.expect("statement");
}

async fn row(database: &Database, job: &str) -> (Option<String>, bool, bool) {
    sqlx::query_as(
        "select owner, expires_at > messaging.now(), last_success_at is not null
         from messaging.job_lease where job = $1",
    )
    .bind(job)
    .fetch_one(&database.pool)
    .await
    .expect("row")
}

#[tokio::test]
async fn of_two_instances_one_runs_the_job_once_an_interval() {
    let database = database().await;
    let (runs, at_once) = (Count::default(), Count::default());
    let starts = Arc::new(Mutex::new(Vec::new()));
    let job = || {
        let (runs, at_once, starts) = (runs.clone(), at_once.clone(), Arc::clone(&starts));
        Job::new("shared", EVERY, move |_| {
            let (runs, at_once, starts) = (runs.clone(), at_once.clone(), Arc::clone(&starts));
            async move {
                assert_eq!(at_once.add(), 0, "two run at once");
                starts.lock().expect("lock").push(Instant::now());
                tokio::time::sleep(EVERY / 4).await;
                at_once.0.fetch_sub(1, Ordering::SeqCst);
                runs.add();
                Ok::<_, std::io::Error>(1)
            }
        })
    };
    let _one = run(&database, vec![job()], &["shared"]);
    let _other = run(&database, vec![job()], &["shared"]);
    runs.reaches(6).await;
    for pair in starts.lock().expect("lock").windows(2) {
        // From the end of one run to the next an interval passes, on the database's clock.
        assert!(pair[1] - pair[0] >= EVERY, "{:?}", pair[1] - pair[0]);
    }
}

#[tokio::test]
async fn the_job_of_a_dead_instance_is_taken_over_once_its_lease_has_run_out() {
    let database = database().await;
    execute(
        &database,
        "insert into messaging.job_lease (job, owner, expires_at)
         values ('orphan', 'dead', messaging.now() + interval '60 s')",
    )
    .await;
    let (orphan, other) = (Count::default(), Count::default());
    let jobs = vec![counting("orphan", &orphan), counting("other", &other)];
    let _running = run(&database, jobs, &["orphan", "other"]);
    // Both are looked at equally often.
    other.reaches(4).await;
    assert_eq!(orphan.get(), 0);
    execute(
        &database,
        "create or replace function messaging.now() returns timestamptz language sql volatile
         as $$ select clock_timestamp() + interval '61 s' $$",
    )
    .await;
    orphan.reaches(1).await;
}

#[tokio::test]
async fn a_run_that_loses_its_lease_is_stopped() {
    let database = database().await;
    let (started, stopped) = (Count::default(), Count::default());
    let (begun, ended) = (started.clone(), stopped.clone());
    let job = Job::new("long", EVERY, move |run| {
        let (begun, ended) = (begun.clone(), ended.clone());
        async move {
            begun.add();
            run.stopped().await;
            ended.add();
            Ok::<_, std::io::Error>(0)
        }
    });
    let (_running, _) = run_with(&database, vec![job], &["long"], Duration::from_millis(600));
    started.reaches(1).await;
    // It is renewed for longer than it lasts.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(stopped.get(), 0, "the lease was not renewed");
    execute(
        &database,
        "update messaging.job_lease set owner = 'thief', expires_at = messaging.now() + interval '1 h'",
    )
    .await;
    stopped.reaches(1).await;
    assert_eq!(row(&database, "long").await, (Some("thief".to_owned()), true, false));
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("lock").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("lock")).into_owned()
    }
}

#[tokio::test]
async fn a_job_that_is_off_is_warned_of_and_never_run() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _log = tracing::subscriber::set_default(subscriber);
    let database = database().await;
    let (off, on) = (Count::default(), Count::default());
    let _running = run(&database, vec![counting("sleeper", &off), counting("worker", &on)], &["worker"]);
    on.reaches(4).await;
    assert_eq!(off.get(), 0);
    let text = log.text();
    let warned = |job: &str| text.lines().any(|l| l.contains("WARN") && l.contains("off") && l.contains(job));
    assert!(warned("sleeper") && !warned("worker"), "{text}");
}

#[tokio::test]
async fn panics_errors_and_overruns_end_the_run_and_nothing_else() {
    let database = database().await;
    let (panics, errors, overruns, good) =
        (Count::default(), Count::default(), Count::default(), Count::default());
    let (p, e, o) = (panics.clone(), errors.clone(), overruns.clone());
    let jobs = vec![
        Job::new("panics", EVERY, move |_| {
            p.add();
            async {
                if std::hint::black_box(true) { panic!("on purpose") } else { Ok::<u64, std::io::Error>(0) }
            }
        }),
        Job::new("errs", EVERY, move |_| {
            e.add();
            async { Err(std::io::Error::other("on purpose")) }
        }),
        Job::new("overruns", EVERY, move |run| {
            o.add();
            async move {
                run.stopped().await;
                Ok::<_, std::io::Error>(0)
            }
        })
        .at_most(Duration::from_millis(50)),
        counting("good", &good),
    ];
    let _running = run(&database, jobs, &["panics", "errs", "overruns", "good"]);
    for count in [&panics, &errors, &overruns, &good] {
        count.reaches(3).await;
    }
    for job in ["panics", "errs", "overruns"] {
        let (_, _, succeeded) = row(&database, job).await;
        assert!(!succeeded, "{job}");
    }
    assert!(row(&database, "good").await.2);
}

#[tokio::test]
async fn shutdown_stops_a_run_and_gives_the_lease_back() {
    let database = database().await;
    let started = Count::default();
    let begun = started.clone();
    let job = Job::new("endless", EVERY, move |run| {
        begun.add();
        async move {
            while !run.is_stopped() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok::<_, std::io::Error>(0)
        }
    });
    let (shutdown, running) = run_with(&database, vec![job], &["endless"], Duration::from_secs(60));
    started.reaches(1).await;
    drop(shutdown);
    tokio::time::timeout(PATIENCE, running).await.expect("ends").expect("runs");
    assert_eq!(row(&database, "endless").await, (None, false, false));
}
