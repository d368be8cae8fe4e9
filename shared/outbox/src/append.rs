//! Drafts of outbox rows, and the call that writes them.

use std::sync::Arc;

use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;
use waybill_event::codec::EncodeError;
use waybill_event::id::MessageId;
use waybill_event::trace::TraceContext;
use waybill_event::{Event, encode};

use crate::hint::Hint;
use crate::locked::Locked;

/// Default of `outbox.max_bytes`, in bytes: 1 MiB, the `max.message.bytes` of the topics in `deploy/kafka`.
pub const DEFAULT_MAX_BYTES: usize = 1 << 20;

/// Bytes set aside for our own headers; equal to the SQL function `messaging.record_overhead()`.
const RECORD_OVERHEAD: usize = 1024;

/// Why an event was not appended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The event does not fit its topic. Nothing was written.
    #[error("event {event_type} of key {key:?} needs {size} bytes, topic {topic:?} takes {limit}")]
    TooLarge {
        /// `ce_type` of the event.
        event_type: String,
        /// Its key.
        key: String,
        /// Topic with its prefix.
        topic: String,
        /// Bytes of key, value, free headers and our own headers.
        size: usize,
        /// The writer's `outbox.max_bytes`.
        limit: usize,
    },
    /// The proof is for another key than the event's.
    #[error("the transaction holds key {held:?}, the event is of key {key:?}")]
    OtherKey {
        /// Key of the proof.
        held: String,
        /// Key of the event.
        key: String,
    },
    /// The event does not fit its own schema.
    #[error("event cannot be encoded")]
    Encode(#[from] EncodeError),
    /// The database refused.
    #[error("outbox row was not written")]
    Database(#[from] sqlx::Error),
}

/// One outbox row before it is written: for statements that fuse the aggregate's insert with
/// `messaging.append(…)`. Such a statement must select *from* the aggregate's CTE
/// (`with o as (insert … returning …) select messaging.append(…) from o`): otherwise PostgreSQL may run the
/// outbox insert first, before the aggregate's row is held.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// Message id, UUIDv7.
    pub id: Uuid,
    /// Kind of aggregate.
    pub aggregatetype: &'static str,
    /// The record's key.
    pub aggregateid: String,
    /// `ce_type`.
    pub r#type: String,
    /// Topic with its prefix.
    pub topic: String,
    /// The record's value.
    pub payload: Vec<u8>,
    /// W3C trace parent of the writing transaction.
    pub traceparent: Option<String>,
    /// W3C trace state.
    pub tracestate: Option<String>,
    /// Free headers, strings by name. They do not pass through Debezium one by one.
    pub headers: Option<Value>,
    /// `outbox.max_bytes`, handed on to the SQL function, in bytes.
    pub max_bytes: i32,
}

/// The writer's end of the outbox: topic prefix, size limit and the relay's doorbell. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox {
    prefix: Arc<str>,
    max_bytes: usize,
    hint: Option<Hint>,
}

impl Outbox {
    /// A writer with a topic prefix (`TOPIC_PREFIX`, may be empty) and a size limit in bytes, which must be the
    /// topics' `max.message.bytes`: larger, and the relay meets records that the broker refuses.
    pub fn new(prefix: impl Into<Arc<str>>, max_bytes: usize) -> Self {
        Self { prefix: prefix.into(), max_bytes, hint: None }
    }

    /// The same writer with a doorbell that [`Outbox::ring`] rings.
    pub fn with_hint(mut self, hint: Hint) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Wakes the relay; call it after the commit. May be lost: the relay polls as well.
    pub fn ring(&self) {
        if let Some(hint) = &self.hint {
            hint.ring();
        }
    }

    /// Encodes an event into a row, with a fresh id and the current span's trace context.
    ///
    /// # Errors
    /// [`Error::Encode`], [`Error::TooLarge`].
    pub fn draft<E: Event>(&self, event: &E) -> Result<Draft, Error> {
        let payload = encode(event)?;
        let aggregateid = event.key();
        let topic = format!("{}{}", self.prefix, E::TOPIC);
        let size = aggregateid.len() + payload.len() + RECORD_OVERHEAD;
        if size > self.max_bytes {
            let event_type = event.event_type();
            return Err(Error::TooLarge { event_type, key: aggregateid, topic, size, limit: self.max_bytes });
        }
        let trace = TraceContext::current();
        let (traceparent, tracestate) = trace.map_or((None, None), |t| (Some(t.traceparent), t.tracestate));
        Ok(Draft {
            id: MessageId::new().into(),
            aggregatetype: E::AGGREGATE,
            aggregateid,
            r#type: event.event_type(),
            topic,
            payload,
            traceparent,
            tracestate,
            headers: None,
            max_bytes: i32::try_from(self.max_bytes).unwrap_or(i32::MAX),
        })
    }

    /// Appends an event after its aggregate's row, in the same transaction.
    ///
    /// # Errors
    /// See [`Error`]. After [`Error::Database`] the transaction is aborted.
    pub async fn append<E: Event>(
        &self,
        tx: &mut PgConnection,
        locked: &Locked,
        event: &E,
    ) -> Result<MessageId, Error> {
        self.append_all(tx, locked, std::slice::from_ref(event)).await.map(|ids| ids[0])
    }

    /// Appends several events of one key in one statement; they keep the order given.
    ///
    /// # Errors
    /// See [`Error`]. Nothing is written when one of them is refused.
    pub async fn append_all<E: Event>(
        &self,
        tx: &mut PgConnection,
        locked: &Locked,
        events: &[E],
    ) -> Result<Vec<MessageId>, Error> {
        let rows = events.iter().map(|event| Ok((locked, self.draft(event)?)));
        append_many(tx, &rows.collect::<Result<Vec<_>, Error>>()?).await
    }
}

/// Appends drafts of any keys, types and topics in one statement, each with the proof for its key; they keep the
/// order given. For batches: hold all keys with [`lock_many`](crate::lock_many), change the state, then append once.
/// A draft carries the trace of the span in which it was made.
///
/// # Errors
/// See [`Error`]. Nothing is written when one of them is refused.
pub async fn append_many(tx: &mut PgConnection, rows: &[(&Locked, Draft)]) -> Result<Vec<MessageId>, Error> {
    for (locked, draft) in rows {
        if draft.aggregateid != locked.key() {
            return Err(Error::OtherKey { held: locked.key().into(), key: draft.aggregateid.clone() });
        }
    }
    if !rows.is_empty() {
        write(tx, rows).await?;
    }
    Ok(rows.iter().map(|(_, draft)| MessageId::from(draft.id)).collect())
}

async fn write(tx: &mut PgConnection, rows: &[(&Locked, Draft)]) -> Result<(), sqlx::Error> {
    fn column<'a, T>(rows: &'a [(&Locked, Draft)], of: impl Fn(&'a Draft) -> T) -> Vec<T> {
        rows.iter().map(|(_, draft)| of(draft)).collect()
    }
    // The sorted subquery keeps the given order: a volatile function is evaluated row by row above it.
    sqlx::query!(
        r#"
        select messaging.append(e.id, e.aggregatetype, e.aggregateid, e.type, e.topic, e.payload,
                                e.traceparent, e.tracestate, e.headers, e.max_bytes) as "seq!"
        from (
            select id, aggregatetype, aggregateid, type, topic, payload, traceparent, tracestate, headers, max_bytes
            from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[],
                        $7::text[], $8::text[], $9::jsonb[], $10::integer[])
                with ordinality as u (id, aggregatetype, aggregateid, type, topic, payload,
                                      traceparent, tracestate, headers, max_bytes, place)
            order by place
        ) e
        "#,
        &column(rows, |d| d.id),
        &column(rows, |d| d.aggregatetype) as &[&str],
        &column(rows, |d| d.aggregateid.as_str()) as &[&str],
        &column(rows, |d| d.r#type.as_str()) as &[&str],
        &column(rows, |d| d.topic.as_str()) as &[&str],
        &column(rows, |d| d.payload.as_slice()) as &[&[u8]],
        &column(rows, |d| d.traceparent.as_deref()) as &[Option<&str>],
        &column(rows, |d| d.tracestate.as_deref()) as &[Option<&str>],
        &column(rows, |d| d.headers.clone()) as &[Option<Value>],
        &column(rows, |d| d.max_bytes),
    )
    .fetch_all(tx)
    .await?;
    Ok(())
}
