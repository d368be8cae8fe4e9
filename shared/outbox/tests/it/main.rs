//! The outbox against a real PostgreSQL.

mod batch;

use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;
use waybill_event::order::{OrderEvent, OrderItem};
use waybill_event::{Event, decode};
use waybill_outbox::{DEFAULT_MAX_BYTES, Error, Hint, Outbox, bucket, inserted, lock, serialize, updated};
use waybill_testkit::{Database, eventually};

async fn database() -> Database {
    let database = Database::create(&[waybill_outbox::migrator()]).await;
    sqlx::query("create table thing (id text primary key, version bigint not null default 1)")
        .execute(&database.pool)
        .await
        .expect("table");
    database
}

fn outbox() -> Outbox {
    Outbox::new("", DEFAULT_MAX_BYTES)
}

fn event(order_id: Uuid, version: i64) -> OrderEvent {
    OrderEvent {
        order_id,
        version,
        r#type: "placed".into(),
        status: "CONFIRMED".into(),
        customer_id: Uuid::new_v4(),
        currency: "KRW".into(),
        items: vec![OrderItem { sku: "TEA-1".into(), quantity: 2, unit_price: 4500 }],
        total: 9000,
        payment_method: "ON_DELIVERY".into(),
        attempt: None,
        points_used: 0,
        paid: 0,
        refunded: 0,
        earn_base: 9000,
        earn_rate_bp: 100,
        expires_at: None,
        reason: None,
        occurred_at: "2026-01-02T03:04:05.678901Z".parse().expect("time"),
    }
}

async fn versions(connection: &mut PgConnection, key: Uuid) -> Vec<i64> {
    let rows = sqlx::query("select payload from messaging.outbox where aggregateid = $1 order by seq")
        .bind(key.to_string())
        .fetch_all(connection)
        .await
        .expect("rows");
    rows.iter().map(|r| decode::<OrderEvent>(r.get::<&[u8], _>(0)).expect("decodes").version).collect()
}

#[tokio::test]
async fn the_row_and_its_event_commit_together_or_not_at_all() {
    let database = database().await;
    let id = Uuid::now_v7();
    for commit in [false, true] {
        let mut tx = database.pool.begin().await.expect("begins");
        let insert = sqlx::query("insert into thing (id) values ($1)").bind(id.to_string());
        let locked = inserted(&mut tx, id.to_string(), insert).await.expect("runs").expect("inserted");
        outbox().append(&mut tx, &locked, &event(id, 1)).await.expect("appends");
        if commit {
            tx.commit().await.expect("commits")
        } else {
            tx.rollback().await.expect("rolls back")
        }
        let both: (i64, i64) =
            sqlx::query_as("select (select count(*) from thing), (select count(*) from messaging.outbox)")
                .fetch_one(&database.pool)
                .await
                .expect("counts");
        assert_eq!(both, (i64::from(commit), i64::from(commit)));
    }
}

#[tokio::test]
async fn a_row_has_all_that_the_record_needs() {
    let database = database().await;
    let id = Uuid::now_v7();
    let mut tx = database.pool.begin().await.expect("begins");
    let locked = serialize(&mut tx, id.to_string()).await.expect("locks");
    let message =
        Outbox::new("staging.", 4096).append(&mut tx, &locked, &event(id, 7)).await.expect("appends");
    tx.commit().await.expect("commits");
    let row = sqlx::query("select id, bucket, aggregatetype, aggregateid, type, topic, payload, sent_at is null as unsent from messaging.outbox")
        .fetch_one(&database.pool)
        .await
        .expect("row");
    assert_eq!(row.get::<Uuid, _>("id"), Uuid::from(message));
    assert_eq!(row.get::<i16, _>("bucket"), bucket(&id.to_string()));
    assert_eq!(row.get::<String, _>("aggregatetype"), "order");
    assert_eq!(row.get::<String, _>("aggregateid"), id.to_string());
    assert_eq!(row.get::<String, _>("type"), "waybill.order.placed");
    assert_eq!(row.get::<String, _>("topic"), "staging.orders.v1");
    assert_eq!(decode::<OrderEvent>(row.get("payload")).expect("decodes").version, 7);
    assert!(row.get::<bool, _>("unsent"));
}

#[tokio::test]
async fn the_bucket_is_the_same_in_sql_and_in_rust() {
    let database = database().await;
    let mut keys: Vec<String> =
        ["", "a", "ab", "abc", "abcd", "21", "foobar", "a-little-bit-longer-string", "주문-1", "🫖"]
            .map(String::from)
            .to_vec();
    keys.extend((0..200).map(|_| Uuid::new_v4().to_string()));
    let buckets: Vec<i16> = sqlx::query_scalar(
        "select messaging.bucket(k) from unnest($1::text[]) with ordinality u (k, n) order by n",
    )
    .bind(&keys)
    .fetch_all(&database.pool)
    .await
    .expect("buckets");
    for (key, sql) in keys.iter().zip(buckets) {
        assert_eq!(bucket(key), sql, "{key:?}");
    }
    // Java's positive murmur2 of these keys modulo 64.
    assert_eq!([bucket("21"), bucket("foobar"), bucket("abc")], [44, 62, 27]);
}

#[tokio::test]
async fn each_session_draws_every_seq_alone() {
    let database = database().await;
    let cache: i64 = sqlx::query_scalar(
        "select seqcache from pg_sequence where seqrelid = pg_get_serial_sequence('messaging.outbox', 'seq')::regclass",
    )
    .fetch_one(&database.pool)
    .await
    .expect("sequence");
    assert_eq!(cache, 1, "a block for each session would invert the events of one key");
}

#[tokio::test]
async fn the_transaction_has_its_xid_before_it_draws_a_seq() {
    // A trigger is the only place that can look between the two: it fires for the insert that draws the seq.
    let database = database().await;
    sqlx::raw_sql(
        "create table witness (had_xid boolean);
         create function look() returns trigger language plpgsql as $$
         begin insert into witness values (pg_current_xact_id_if_assigned() is not null); return new; end $$;
         create trigger look before insert on messaging.outbox for each statement execute function look();",
    )
    .execute(&database.pool)
    .await
    .expect("trigger");
    sqlx::query("select messaging.append(gen_random_uuid(), 'order', 'k', 't', 'orders.v1', '\\x01')")
        .execute(&database.pool)
        .await
        .expect("appends");
    let had: bool =
        sqlx::query_scalar("select had_xid from witness").fetch_one(&database.pool).await.expect("seen");
    assert!(had, "the floor of the relay is proven by xids");
}

#[tokio::test]
async fn a_fused_statement_takes_the_row_before_the_seq() {
    // Another session holds the row's key. A statement that appended first would have drawn a seq while it waits.
    let database = database().await;
    let mut holder = database.pool.begin().await.expect("begins");
    sqlx::query("insert into thing (id) values ('k')").execute(&mut *holder).await.expect("holds");
    let pool = database.pool.clone();
    let fused = tokio::spawn(async move {
        sqlx::query(
            "with o as (insert into thing (id) values ('k') on conflict (id) do update set version = thing.version + 1 returning id)
             select messaging.append(gen_random_uuid(), 'order', o.id, 't', 'orders.v1', '\\x01') from o",
        )
        .execute(&pool)
        .await
    });
    eventually(async || {
        let waits: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
        .fetch_one(&database.pool)
        .await
        .expect("activity");
        if waits > 0 { Ok(()) } else { Err("nobody waits") }
    })
    .await;
    let drawn: bool = sqlx::query_scalar("select is_called from messaging.outbox_seq_seq")
        .fetch_one(&database.pool)
        .await
        .expect("sequence");
    assert!(!drawn, "the seq was drawn before the row was held");
    holder.commit().await.expect("commits");
    fused.await.expect("runs").expect("appends");
}

#[tokio::test]
async fn two_writers_of_one_key_append_in_the_order_of_their_states() {
    let database = database().await;
    let id = Uuid::now_v7();
    sqlx::query("insert into thing (id, version) values ($1, 0)")
        .bind(id.to_string())
        .execute(&database.pool)
        .await
        .expect("row");
    let writers = (0..8).map(|_| {
        let pool = database.pool.clone();
        tokio::spawn(async move {
            for _ in 0..25 {
                let mut tx = pool.begin().await.expect("begins");
                let select = sqlx::query("select version from thing where id = $1 for update")
                    .bind(id.to_string())
                    .try_map(|row: sqlx::postgres::PgRow| row.try_get::<i64, _>(0));
                let (version, locked) =
                    lock(&mut tx, id.to_string(), select).await.expect("runs").expect("row");
                sqlx::query("update thing set version = $2 where id = $1")
                    .bind(id.to_string())
                    .bind(version + 1)
                    .execute(&mut *tx)
                    .await
                    .expect("updates");
                outbox().append(&mut tx, &locked, &event(id, version + 1)).await.expect("appends");
                tx.commit().await.expect("commits");
            }
        })
    });
    futures::future::join_all(writers).await.into_iter().for_each(|w| w.expect("writer"));
    let mut connection = database.pool.acquire().await.expect("connection");
    assert_eq!(versions(&mut connection, id).await, (1..=200).collect::<Vec<_>>());
}

#[tokio::test]
async fn several_events_of_one_statement_keep_their_order() {
    let database = database().await;
    let id = Uuid::now_v7();
    let events: Vec<_> = (1..=300).map(|version| event(id, version)).collect();
    let mut tx = database.pool.begin().await.expect("begins");
    let locked = serialize(&mut tx, id.to_string()).await.expect("locks");
    outbox().append_all(&mut tx, &locked, &events).await.expect("appends");
    tx.commit().await.expect("commits");
    let mut connection = database.pool.acquire().await.expect("connection");
    assert_eq!(versions(&mut connection, id).await, (1..=300).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_event_that_does_not_fit_is_refused_before_the_commit() {
    let database = database().await;
    let id = Uuid::now_v7();
    let mut large = event(id, 1);
    large.reason = Some("x".repeat(5000));
    let mut tx = database.pool.begin().await.expect("begins");
    let locked = serialize(&mut tx, id.to_string()).await.expect("locks");
    let error = Outbox::new("", 4096).append(&mut tx, &locked, &large).await.expect_err("too large");
    assert!(matches!(&error, Error::TooLarge { size, limit: 4096, .. } if *size > 5000), "{error}");
    assert!(error.to_string().contains("orders.v1") && error.to_string().contains("4096"), "{error}");
    // The SQL function is the same gate for writers in other languages.
    let refused = sqlx::query(
        "select messaging.append(gen_random_uuid(), 'order', 'k', 't', 'orders.v1', $1, max_bytes => 4096)",
    )
    .bind(vec![0_u8; 5000])
    .execute(&mut *tx)
    .await
    .expect_err("too large");
    assert!(refused.to_string().contains("takes 4096"), "{refused}");
}

#[tokio::test]
async fn incomplete_rows_are_refused_by_name() {
    let database = database().await;
    for call in [
        "messaging.append(null, 'order', 'k', 't', 'orders.v1', '\\x01')",
        "messaging.append(gen_random_uuid(), '', 'k', 't', 'orders.v1', '\\x01')",
        "messaging.append(gen_random_uuid(), 'order', '', 't', 'orders.v1', '\\x01')",
        "messaging.append(gen_random_uuid(), 'order', 'k', null, 'orders.v1', '\\x01')",
        "messaging.append(gen_random_uuid(), 'order', 'k', 't', '', '\\x01')",
        "messaging.append(gen_random_uuid(), 'order', 'k', 't', 'orders.v1', null)",
        "messaging.append(gen_random_uuid(), 'order', 'k', 't', 'orders.v1', '\\x01', headers => '[1]')",
    ] {
        let statement = format!("select {call}");
        let error =
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&database.pool).await.expect_err(call);
        assert!(error.to_string().contains("outbox: "), "{error}");
    }
}

#[tokio::test]
async fn a_proof_is_good_for_its_own_key_only() {
    let database = database().await;
    let id = Uuid::now_v7();
    let mut tx = database.pool.begin().await.expect("begins");
    let other = serialize(&mut tx, "other").await.expect("locks");
    let error = outbox().append(&mut tx, &other, &event(id, 1)).await.expect_err("other key");
    assert!(matches!(error, Error::OtherKey { .. }), "{error}");
    let nothing = sqlx::query("update thing set version = 2 where id = 'nobody'");
    assert!(updated(&mut tx, "nobody", nothing).await.expect("runs").is_none());
}

#[tokio::test]
async fn the_hint_rings_after_the_commit_and_survives_a_lost_connection() {
    let database = database().await;
    let mut listener = sqlx::postgres::PgListener::connect(&database.url).await.expect("listens");
    listener.listen(waybill_outbox::CHANNEL).await.expect("listens");
    let shutdown = tokio_util::sync::CancellationToken::new();
    let hint = Hint::start(database.url.parse().expect("url"), shutdown.clone());
    for _ in 0..50 {
        hint.ring();
    }
    assert_eq!(listener.recv().await.expect("rung").payload(), "");
    sqlx::query("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query like 'notify%'")
        .execute(&database.pool)
        .await
        .expect("terminates");
    eventually(async || {
        hint.ring();
        let rung = tokio::time::timeout(std::time::Duration::from_millis(200), listener.try_recv()).await;
        if matches!(rung, Ok(Ok(Some(_)))) { Ok(()) } else { Err("silent") }
    })
    .await;
    shutdown.cancel();
}

#[tokio::test]
async fn migrations_run_beside_those_of_the_service_and_again() {
    let database = database().await;
    let mut connection = PgConnection::connect(&database.url).await.expect("connects");
    waybill_outbox::migrator().run(&mut connection).await.expect("again");
    let known: bool = sqlx::query_scalar("select to_regclass('messaging.outbox_migrations') is not null and to_regclass('_sqlx_migrations') is null")
        .fetch_one(&mut connection)
        .await
        .expect("tables");
    assert!(known);
    assert_eq!(event(Uuid::nil(), 1).key(), Uuid::nil().to_string());
}
