//! Reading unsent rows.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::cursor::Page;
use super::super::row::{Key, Row, RowId};
use super::{Error, Store};

/// Bytes of payloads that one bucket may bring in one fetch; the row that crosses it still comes.
pub(crate) const PAGE_BYTES: i64 = 1 << 20;

/// What one fetch saw, in one snapshot.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    /// By bucket.
    pub(crate) buckets: HashMap<i16, Listed>,
}

/// What one fetch saw of one bucket.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// Unsent rows above the cursor, in `seq` order, each with "its key is blocked".
    pub(crate) rows: Vec<(Row, bool)>,
    /// `seq` of every unsent row up to the cursor.
    pub(crate) behind: Vec<i64>,
}

impl Listed {
    /// Whether more rows may follow.
    pub(crate) fn is_full(&self, page: &Page) -> bool {
        let bytes: usize = self.rows.iter().map(|(row, _)| row.payload.len()).sum();
        self.rows.len() as i64 >= page.take || bytes as i64 >= PAGE_BYTES
    }
}

impl Store {
    /// Unsent rows of the pages' buckets, without those of the topics in `without`.
    ///
    /// # Errors
    /// What the database answers.
    pub(crate) async fn fetch(&self, pages: &[Page], without: &[Arc<str>]) -> Result<Fetched, Error> {
        let buckets: Vec<i16> = pages.iter().map(|page| page.bucket).collect();
        let afters: Vec<i64> = pages.iter().map(|page| page.after).collect();
        let takes: Vec<i64> = pages.iter().map(|page| page.take).collect();
        let without: Vec<&str> = without.iter().map(|topic| &**topic).collect();
        let records = sqlx::query_file!(
            "src/source/store/fetch.sql",
            &buckets,
            &afters,
            &takes,
            &without as &[&str],
            PAGE_BYTES,
        )
        .fetch_all(&self.main)
        .await?;

        let mut fetched = Fetched::default();
        let mut topics: HashMap<String, Arc<str>> = HashMap::new();
        for record in records {
            let listed = fetched.buckets.entry(record.bucket).or_default();
            if let Some(behind) = record.behind {
                listed.behind = behind;
            }
            let (Some(seq), Some(id), Some(key), Some(kind), Some(topic), Some(payload), Some(created_at)) = (
                record.seq,
                record.id,
                record.aggregateid,
                record.r#type,
                record.topic,
                record.payload,
                record.created_at,
            ) else {
                continue;
            };
            let topic = topics.entry(topic).or_insert_with_key(|name| name.as_str().into()).clone();
            let row = Row {
                id: RowId { seq, id },
                bucket: record.bucket,
                key: Arc::new(Key { topic, key }),
                r#type: kind,
                payload,
                traceparent: record.traceparent,
                tracestate: record.tracestate,
                headers: record.headers,
                created_at,
            };
            listed.rows.push((row, record.blocked.unwrap_or(false)));
        }
        for listed in fetched.buckets.values_mut() {
            // A union promises no order.
            listed.rows.sort_by_key(|(row, _)| row.id);
        }
        Ok(fetched)
    }
}
