//! Reading sent rows once more.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::super::row::{Key, Row, RowId};
use super::{Error, Store};

/// Rows that one step reads, whether they are wanted or not: so a rare key cannot make a step run for ever.
const STEP: i64 = 2_000;

/// Which sent rows; what is not given does not matter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    /// Of this key.
    pub(crate) key: Option<String>,
    /// Of this topic, with its prefix.
    pub(crate) topic: Option<String>,
    /// Of this `ce_type`.
    pub(crate) kind: Option<String>,
    /// Written at this time or later.
    pub(crate) since: Option<DateTime<Utc>>,
}

/// One step through the outbox.
#[derive(Debug)]
pub(crate) struct Step {
    /// Wanted rows in `seq` order.
    pub(crate) rows: Vec<Row>,
    /// Where the next step goes on; `None`: this was the last.
    pub(crate) next: Option<i64>,
}

impl Store {
    /// The highest `seq` of the outbox, or 0.
    ///
    /// # Errors
    /// What the database answers.
    pub(crate) async fn last_seq(&self) -> Result<i64, Error> {
        let mut session = self.main().await?;
        let last = sqlx::query_scalar!(r#"select coalesce(max(seq), 0) as "last!" from messaging.outbox"#)
            .fetch_one(&mut session)
            .await?;
        session.end().await?;
        Ok(last)
    }

    /// Sent rows above `after` and up to `until`. Unsent rows are the relays' own, dead and held ones an operator's.
    ///
    /// # Errors
    /// What the database answers.
    pub(crate) async fn sent(&self, after: i64, until: i64, filter: &Filter) -> Result<Step, Error> {
        let mut session = self.main().await?;
        let records = sqlx::query!(
            r#"select
                   o.seq, o.id, o.bucket, o.aggregateid, o.type, o.topic, o.traceparent, o.tracestate, o.headers,
                   o.created_at, o.wanted as "wanted!", case when o.wanted then o.payload end as payload
               from (
                   select
                       seq, id, bucket, aggregateid, type, topic, traceparent, tracestate, headers, created_at, payload,
                       sent_at is not null
                           and ($3::text is null or aggregateid = $3)
                           and ($4::text is null or topic = $4)
                           and ($5::text is null or type = $5)
                           and ($6::timestamptz is null or created_at >= $6) as wanted,
                       lead(seq) over (order by seq) is null as last
                   from (
                       select * from messaging.outbox where seq > $1 and seq <= $2 order by seq limit $7
                   ) step
               ) o
               where o.wanted or o.last
               order by o.seq"#,
            after,
            until,
            filter.key,
            filter.topic,
            filter.kind,
            filter.since,
            STEP,
        )
        .fetch_all(&mut session)
        .await?;
        session.end().await?;
        let next = records.last().map(|record| record.seq);
        let wanted = records.into_iter().filter_map(|record| {
            let topic: Arc<str> = record.topic.into();
            Some(Row {
                id: RowId { seq: record.seq, id: record.id },
                bucket: record.bucket,
                key: Arc::new(Key { topic, key: record.aggregateid }),
                r#type: record.r#type,
                payload: record.payload?,
                traceparent: record.traceparent,
                tracestate: record.tracestate,
                headers: record.headers,
                created_at: record.created_at,
                retried: true,
            })
        });
        Ok(Step { rows: wanted.collect(), next })
    }
}
