//! Wrong settings and unreachable parts end a process with a message that names them.

use waybill_tests::System;

/// Service, arguments, the wrong setting, and what the message must name.
type Case<'a> = (&'static str, &'a [&'a str], (&'a str, &'a str), &'a str);

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_setting_is_named_and_shows_no_secret() {
    let system = System::prepare(&[]).await;
    let secret = "hunter2";
    let cases: &[Case] = &[
        ("order", &["serve"], ("DATABASE_URL", "mysql://u:hunter2@h/d"), "DATABASE_URL"),
        ("order", &["migrate"], ("DATABASE_URL", ""), "DATABASE_URL"),
        ("order", &["serve"], ("DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/d"), "127.0.0.1:1"),
        ("order", &["serve"], ("HTTP_LISTEN", "nowhere"), "--http-listen"),
        ("order", &["serve"], ("JWT_JWKS_FILE", "/nowhere/jwks.json"), "JWT_JWKS_FILE"),
        ("order", &["serve"], ("RUST_LOG", "order=loud"), "RUST_LOG"),
        ("order", &["serve"], ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector"), "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ("order", &["serve"], ("TOPIC_PREFIX", "a b"), "TOPIC_PREFIX"),
        ("point", &["serve"], ("KAFKA_BOOTSTRAP", "nowhere"), "KAFKA_BOOTSTRAP"),
        ("point", &["serve"], ("DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/d"), "127.0.0.1:1"),
        ("notification", &["serve"], ("TOPIC_PREFIX", "a/b"), "TOPIC_PREFIX"),
        ("relay", &["serve"], ("RELAY_SOURCES", "order"), "RELAY_SOURCES"),
        ("relay", &["serve"], ("RELAY_SOURCES", "order=mysql://u:hunter2@h/d"), "RELAY_SOURCES"),
        ("relay", &["serve"], ("KAFKA_BOOTSTRAP", "broker:x"), "KAFKA_BOOTSTRAP"),
        ("console", &["serve"], ("DATABASE_URL", "mysql://u:hunter2@h/d"), "DATABASE_URL"),
        ("console", &["serve"], ("DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/d"), "127.0.0.1:1"),
        ("console", &["migrate"], ("DATABASE_URL", ""), "DATABASE_URL"),
        ("console", &["serve"], ("KAFKA_BOOTSTRAP", "broker:x"), "KAFKA_BOOTSTRAP"),
        ("console", &["serve"], ("JWT_JWKS_FILE", "/nowhere/jwks.json"), "JWT_JWKS_FILE"),
        ("console", &["serve"], ("CONSOLE_SERVICES", "point"), "--service"),
        ("console", &["serve"], ("CONSOLE_SERVICES", "p=http://h:1,p=http://h:2"), "CONSOLE_SERVICES"),
        ("console", &["serve"], ("CONSOLE_DLT_PATTERNS", ".*-dlt"), "CONSOLE_DLT_PATTERNS"),
        ("console", &["serve"], ("CONSOLE_DLT_PATTERNS", "^(.*-dlt"), "CONSOLE_DLT_PATTERNS"),
        ("console", &["serve"], ("CONSOLE_REPLAY_LEASE", "1s"), "CONSOLE_REPLAY_LEASE"),
        ("console", &["serve"], ("CONSOLE_LOOP_CAP", "0"), "--loop-cap"),
        ("console", &["serve"], ("JOBS", "sweep"), "sweep"),
        (
            "relay",
            &["topics", "plan", "--file", "/nowhere/topics.toml"],
            ("TOPIC_PREFIX", ""),
            "/nowhere/topics.toml",
        ),
        ("relay", &["topics", "fly"], ("TOPIC_PREFIX", ""), "fly"),
    ];
    for (service, arguments, setting, names) in cases {
        let (code, log) = system.command(service, arguments, &[*setting]).await;
        assert!(
            !matches!(code, Some(0) | None),
            "{service} {arguments:?} {setting:?} ended with {code:?}:\n{log}"
        );
        assert!(log.contains(names), "{service} {setting:?} does not name {names}:\n{log}");
        assert!(!log.contains(secret), "{service} {setting:?} shows a secret:\n{log}");
        assert!(!log.contains("panicked"), "{service} {setting:?} panicked:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_broker_leaves_orders_taken_and_says_so() {
    let mut system = System::prepare(&[("KAFKA_BOOTSTRAP", "127.0.0.1:1")]).await;
    for service in ["order", "relay", "point", "console"] {
        system.spawn(service, None);
    }
    // The outbox takes the outage: the order service does not need Kafka to be ready.
    system.ready("order").await;
    let answer = system.customer().place("k", "TEA-1", 1, "ON_DELIVERY", None).await.expect("answer");
    assert_eq!(answer.status, 201, "{answer:?}");
    let http = reqwest::Client::builder().no_proxy().build().expect("client");
    for service in ["relay", "point", "console"] {
        let url = format!("{}/readyz", system.http(service));
        let process = system.process(service);
        waybill_testkit::eventually(async || {
            assert!(process.is_running(), "{service} must outlive an outage:\n{}", process.log());
            match http.get(&url).send().await {
                Ok(answer) if answer.status() == 503 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
    let unsent: i64 = sqlx::query_scalar(
        "select count(*) from messaging.outbox where sent_at is null and dead_at is null and attempts = 0",
    )
    .fetch_one(&system.orders.pool)
    .await
    .expect("count");
    assert_eq!(unsent, 1, "an outage is never counted");
}
