//! Reading unsent rows.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::cursor::Page;
use super::super::row::{Key, Row, RowId};
use super::{Error, Store};

/// Rows of topics at their limit that one bucket passes over in one fetch.
const OVER_FULL: i64 = 64;
/// Rows of paused and standing topics that one bucket passes over in one fetch.
const OVER_STILL: i64 = 2_000;

/// Topics that take nothing for now. Their rows are passed over, and no floor waits for them: when they go on, the
/// floors that passed them are given up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Still {
    /// Everywhere, because they are paused.
    pub(crate) paused: Vec<Arc<str>>,
    /// In one bucket, because its partition takes nothing.
    pub(crate) standing: Vec<(i16, Arc<str>)>,
}

impl Still {
    pub(super) fn is_empty(&self) -> bool {
        self.paused.is_empty() && self.standing.is_empty()
    }

    /// As the statements take it: topics, and `bucket:topic`.
    pub(super) fn columns(&self) -> (Vec<&str>, Vec<String>) {
        let standing = self.standing.iter().map(|(bucket, topic)| format!("{bucket}:{topic}"));
        (self.paused.iter().map(|topic| &**topic).collect(), standing.collect())
    }
}

/// What a fetch leaves out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ask {
    /// What stands still.
    pub(crate) still: Still,
    /// Topics that hold all that they may.
    pub(crate) full: Vec<Arc<str>>,
}

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
    /// `seq` of every unsent row above the floor and up to the cursor.
    pub(crate) behind: Vec<i64>,
    /// The bucket's era, when it is not the page's.
    pub(crate) era: Option<i64>,
    /// Rows that were left out were passed over up to here.
    pub(crate) passed: Option<i64>,
}

impl Listed {
    /// Whether more rows may follow.
    pub(crate) fn is_full(&self, page: &Page) -> bool {
        let bytes: usize = self.rows.iter().map(|(row, _)| row.payload.len()).sum();
        self.rows.len() as i64 >= page.take || bytes as i64 >= page.bytes || self.passed.is_some()
    }
}

impl Store {
    /// Unsent rows of the pages' buckets.
    ///
    /// # Errors
    /// What the database answers.
    pub(crate) async fn fetch(&self, pages: &[Page], ask: &Ask) -> Result<Fetched, Error> {
        let buckets: Vec<i16> = pages.iter().map(|page| page.bucket).collect();
        let afters: Vec<i64> = pages.iter().map(|page| page.after).collect();
        let takes: Vec<i64> = pages.iter().map(|page| page.take).collect();
        let bytes: Vec<i64> = pages.iter().map(|page| page.bytes).collect();
        let floors: Vec<i64> = pages.iter().map(|page| page.floor).collect();
        let known: Vec<i64> = pages.iter().map(|page| page.era.unwrap_or(-1)).collect();
        let (mut without, standing) = ask.still.columns();
        without.extend(ask.full.iter().map(|topic| &**topic));
        let over = match (ask.still.is_empty(), ask.full.is_empty()) {
            (true, true) => 0,
            (true, false) => OVER_FULL,
            (false, _) => OVER_STILL,
        };
        let mut session = self.main().await?;
        let records = sqlx::query_file!(
            "src/source/store/fetch.sql",
            &buckets,
            &afters,
            &takes,
            &without as &[&str],
            &bytes,
            &floors,
            &known,
            over,
            &standing,
        )
        .fetch_all(&mut session)
        .await?;
        session.end().await?;

        let mut fetched = Fetched::default();
        let mut topics: HashMap<String, Arc<str>> = HashMap::new();
        for record in records {
            let listed = fetched.buckets.entry(record.bucket).or_default();
            if let (Some(behind), Some(era)) = (record.behind, record.era) {
                listed.behind = behind;
                listed.era = Some(era);
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
                // The last row that was read is left out: it only says how far.
                listed.passed = listed.passed.max(record.seq);
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
                retried: record.retried.unwrap_or(false),
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
