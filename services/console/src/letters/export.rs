//! Dead letters as lines of JSON, read page by page while they are written.

use axum::body::Bytes;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use super::{Selection, store};
use crate::letters::search;

/// Letters of a page; with their values, so that few are in memory at once.
const PAGE: i64 = 20;

/// One line a letter: the item, its headers as `[name, base64 or null]`, and its value when `payload` is on.
pub(super) fn lines(
    pool: PgPool,
    selection: Selection,
    payload: bool,
    limit: i64,
) -> impl Stream<Item = Result<Bytes, sqlx::Error>> {
    let begin = (pool, selection, None, limit);
    stream::try_unfold(begin, move |(pool, selection, after, left)| async move {
        if left <= 0 {
            return Ok(None);
        }
        let (lines, last) = page(&pool, &selection, after, left.min(PAGE), payload).await?;
        let left = left - i64::try_from(lines.len()).unwrap_or(i64::MAX);
        Ok::<_, sqlx::Error>(last.map(|last| (lines, (pool, selection, Some(last), left))))
    })
    .map_ok(|lines| stream::iter(lines).map(Ok))
    .try_flatten()
}

type Place = (DateTime<Utc>, Uuid);

async fn page(
    pool: &PgPool,
    selection: &Selection,
    after: Option<Place>,
    limit: i64,
    payload: bool,
) -> Result<(Vec<Bytes>, Option<Place>), sqlx::Error> {
    let mut tx = store::begin(pool).await?;
    let rows = store::list(&mut tx, selection, after, limit).await?;
    let last = rows.last().map(|row| (row.dead_at, row.item_id));
    let mut lines = Vec::with_capacity(rows.len());
    for row in rows {
        // Purged between the two statements: there is nothing left to export.
        let Some(record) = store::record(&mut tx, row.record_id, payload).await? else { continue };
        let key = row.key.as_ref().map(|key| STANDARD.encode(key));
        let mut line = serde_json::to_value(search::item(row)).unwrap_or_default();
        line["key_base64"] = json!(key);
        line["headers"] = record.headers;
        if payload {
            line["value_base64"] = record.value.map_or(Value::Null, |value| STANDARD.encode(value).into());
        }
        let mut text = line.to_string();
        text.push('\n');
        lines.push(Bytes::from(text));
    }
    tx.commit().await?;
    Ok((lines, last))
}
