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
        // One statement, hence one snapshot, tells both what is new and what lies unsent behind the cursor. Two
        // statements could miss a row between them: a transaction that drew its seq early and committed late. The
        // next row of its key, already above the cursor, would then overtake it.
        // The lateral limit keeps the index condition and needs no sort; the running sum bounds memory.
        let records = sqlx::query!(
            r#"
            with page as (
                select p.bucket, p.after, p.take
                from unnest($1::smallint[], $2::bigint[], $3::bigint[]) as p (bucket, after, take)
            )
            select
                page.bucket as "bucket!",
                array(
                    select o.seq from messaging.outbox o
                    where o.bucket = page.bucket and o.seq <= page.after
                        and o.sent_at is null and o.dead_at is null and o.held_at is null
                        and o.topic <> all ($4::text[])
                ) as "behind: Vec<i64>",
                null::bigint as "seq?", null::uuid as "id?", null::text as "aggregateid?", null::text as "type?",
                null::text as "topic?", null::bytea as "payload?", null::text as "traceparent?",
                null::text as "tracestate?", null::jsonb as "headers?", null::timestamptz as "created_at?",
                null::boolean as "blocked?"
            from page
            where page.after > 0
            union all
            select
                page.bucket, null, r.seq, r.id, r.aggregateid, r.type, r.topic, r.payload, r.traceparent,
                r.tracestate, r.headers, r.created_at,
                exists (
                    select from messaging.outbox_blocked b where b.topic = r.topic and b.key = r.aggregateid
                )
            from page
            cross join lateral (
                select
                    o.seq, o.id, o.aggregateid, o.type, o.topic, o.payload, o.traceparent, o.tracestate, o.headers,
                    o.created_at, sum(octet_length(o.payload)) over (order by o.seq) - octet_length(o.payload) as before
                from (
                    select seq, id, aggregateid, type, topic, payload, traceparent, tracestate, headers, created_at
                    from messaging.outbox o
                    where o.bucket = page.bucket and o.seq > page.after
                        and o.sent_at is null and o.dead_at is null and o.held_at is null
                        and o.topic <> all ($4::text[])
                    order by o.seq
                    limit page.take
                ) o
            ) r
            where r.before < $5
            "#,
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
