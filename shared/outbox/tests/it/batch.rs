//! Several keys in one statement each: for consumers that handle batches.

use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};
use tokio::sync::Barrier;
use uuid::Uuid;
use waybill_event::decode;
use waybill_event::order::OrderEvent;
use waybill_outbox::{Error, Locked, append_many, lock_many};

use crate::{database, event, outbox, versions};

async fn things(pool: &PgPool, keys: &[Uuid]) {
    let keys: Vec<String> = keys.iter().map(Uuid::to_string).collect();
    sqlx::query("insert into thing (id, version) select id, 0 from unnest($1::text[]) as t (id)")
        .bind(keys)
        .execute(pool)
        .await
        .expect("rows");
}

/// Locks in the order of the keys, whatever order they are given in.
async fn hold(tx: &mut sqlx::PgConnection, keys: &[Uuid]) -> Vec<((Uuid, i64), Locked)> {
    let keys: Vec<String> = keys.iter().map(Uuid::to_string).collect();
    let select = sqlx::query("select id, version from thing where id = any($1) order by id for update")
        .bind(keys)
        .try_map(|row: PgRow| {
            let id = Uuid::parse_str(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
            Ok((id, row.try_get::<i64, _>(1)?))
        });
    lock_many(tx, select, |(id, _)| id.to_string()).await.expect("locks")
}

#[tokio::test]
async fn a_batch_holds_the_rows_that_are_there_with_a_proof_for_each() {
    let database = database().await;
    let mut keys = [Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4()];
    things(&database.pool, &keys[..2]).await;
    let mut tx = database.pool.begin().await.expect("begins");
    let held = hold(&mut tx, &keys).await;
    keys[..2].sort();
    assert_eq!(held.iter().map(|((id, _), _)| *id).collect::<Vec<_>>(), keys[..2]);
    assert!(held.iter().all(|((id, _), locked)| locked.key() == id.to_string()));
    let free: Vec<String> = sqlx::query_scalar("select id from thing for update skip locked")
        .fetch_all(&database.pool)
        .await
        .expect("rows");
    assert!(free.is_empty(), "{free:?}");
}

#[tokio::test]
async fn batches_with_keys_in_common_take_turns_and_keep_the_order_of_every_key() {
    const WRITERS: usize = 6;
    const BATCHES: i64 = 15;
    let database = database().await;
    let keys: Arc<[Uuid]> = (0..8).map(|_| Uuid::new_v4()).collect();
    things(&database.pool, &keys).await;
    let start = Arc::new(Barrier::new(WRITERS));
    let writers = (0..WRITERS).map(|writer| {
        let (pool, start, keys) = (database.pool.clone(), start.clone(), keys.clone());
        tokio::spawn(async move {
            start.wait().await;
            for _ in 0..BATCHES {
                // Each writer names the keys in another order.
                let mut keys = keys.to_vec();
                keys.rotate_left(writer);
                let mut tx = pool.begin().await.expect("begins");
                let held = hold(&mut tx, &keys).await;
                sqlx::query("update thing set version = version + 2")
                    .execute(&mut *tx)
                    .await
                    .expect("updates");
                // Two events for each key, the keys interleaved.
                let rows: Vec<_> = [1, 2]
                    .iter()
                    .flat_map(|step| {
                        held.iter().rev().map(move |((id, version), locked)| (id, version + step, locked))
                    })
                    .map(|(id, version, locked)| {
                        (locked, outbox().draft(&event(*id, version)).expect("fits"))
                    })
                    .collect();
                assert_eq!(append_many(&mut tx, &rows).await.expect("appends").len(), 2 * keys.len());
                tx.commit().await.expect("commits");
            }
        })
    });
    futures::future::join_all(writers).await.into_iter().for_each(|writer| writer.expect("no deadlock"));
    let mut connection = database.pool.acquire().await.expect("connection");
    for key in keys.iter() {
        let all: Vec<i64> = (1..=2 * BATCHES * WRITERS as i64).collect();
        assert_eq!(versions(&mut connection, *key).await, all);
    }
}

#[tokio::test]
async fn every_row_of_a_batch_is_its_own_draft() {
    let database = database().await;
    let keys = [Uuid::new_v4(), Uuid::new_v4()];
    things(&database.pool, &keys).await;
    let mut tx = database.pool.begin().await.expect("begins");
    let held = hold(&mut tx, &keys).await;
    let traces = [
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ];
    let rows: Vec<_> = held
        .iter()
        .zip(traces)
        .map(|(((id, _), locked), trace)| {
            let mut draft = outbox().draft(&event(*id, 1)).expect("fits");
            draft.traceparent = Some(trace.into());
            draft.headers = Some(serde_json::json!({ "of": id.to_string() }));
            (locked, draft)
        })
        .collect();
    let ids = append_many(&mut tx, &rows).await.expect("appends");
    tx.commit().await.expect("commits");
    let written = sqlx::query("select id, aggregateid, payload, traceparent, headers ->> 'of' as of from messaging.outbox order by seq")
        .fetch_all(&database.pool)
        .await
        .expect("rows");
    assert_eq!(written.len(), 2);
    for (n, row) in written.iter().enumerate() {
        let key = rows[n].0.key();
        assert_eq!(row.get::<Uuid, _>("id"), Uuid::from(ids[n]));
        assert_eq!(row.get::<&str, _>("aggregateid"), key);
        assert_eq!(row.get::<&str, _>("of"), key);
        assert_eq!(row.get::<&str, _>("traceparent"), traces[n]);
        assert_eq!(decode::<OrderEvent>(row.get("payload")).expect("decodes").order_id.to_string(), key);
    }
}

#[tokio::test]
async fn a_batch_with_one_wrong_proof_or_one_large_event_writes_nothing() {
    let database = database().await;
    let keys = [Uuid::new_v4(), Uuid::new_v4()];
    things(&database.pool, &keys).await;
    let mut tx = database.pool.begin().await.expect("begins");
    let held = hold(&mut tx, &keys).await;
    assert!(append_many(&mut tx, &[]).await.expect("nothing to do").is_empty());
    let draft = |n: usize| outbox().draft(&event(held[n].0.0, 1)).expect("fits");
    let crossed = [(&held[0].1, draft(0)), (&held[0].1, draft(1))];
    let error = append_many(&mut tx, &crossed).await.expect_err("another key's proof");
    assert!(matches!(error, Error::OtherKey { .. }), "{error}");
    let mut large = draft(1);
    large.max_bytes = 1100;
    let error =
        append_many(&mut tx, &[(&held[0].1, draft(0)), (&held[1].1, large)]).await.expect_err("large");
    assert!(matches!(error, Error::Database(_)), "{error}");
    tx.rollback().await.expect("rolls back");
    let rows: i64 = sqlx::query_scalar("select count(*) from messaging.outbox")
        .fetch_one(&database.pool)
        .await
        .expect("rows");
    assert_eq!(rows, 0);
}
