//! A head as a record, as a dead letter, and whether it is its turn.

use std::sync::Arc;

use chrono::Utc;
use waybill_event::{Headers, MessageId, headers as names, time::ce_time};

use crate::{
    batch::{DECODE, Fallen, PANIC, PERMANENT, TRANSIENT},
    crash::CRASH,
    park::{
        headers,
        store::{Head, KeyRow},
    },
    record::{Record, RecordHeaders, Undecodable},
    work::Failed,
};

impl Head {
    /// A replay has its own time, and comes also where the key is blocked.
    pub(super) fn is_turn(&self, key: &KeyRow) -> bool {
        if self.replay_id.is_some() { self.due } else { key.due }
    }

    /// Attempts with the one under way.
    pub(super) fn attempt(&self, key: &KeyRow) -> u32 {
        if self.replay_id.is_some() { 1 } else { u32::try_from(key.attempts).unwrap_or(0).saturating_add(1) }
    }

    /// The record as it was read.
    pub(in crate::park) fn record(&self, key: &KeyRow, topic: &Arc<str>) -> Record {
        Record {
            topic: if *self.read_from == **topic {
                Arc::clone(topic)
            } else {
                self.read_from.as_str().into()
            },
            partition: self.record_partition,
            offset: self.record_offset,
            timestamp_ms: self.record_timestamp_ms,
            key: (!key.keyless).then(|| key.key.clone()),
            value: self.value.clone(),
            // Written by this crate, so they can be read.
            headers: RecordHeaders::Read(headers::read(&self.headers).unwrap_or_default()),
        }
    }

    pub(super) fn died(
        &self,
        key: &KeyRow,
        topic: &Arc<str>,
        class: &'static str,
        failed: &Failed,
    ) -> Fallen {
        Fallen {
            record: self.mournful(key, topic),
            id: MessageId::from(self.message_id),
            attempt: self.attempt(key),
            code: if class == PANIC { PANIC.to_owned() } else { failed.failure.code() },
            class,
            text: failed.failure.text(),
            failed_at: Utc::now(),
            traceparent: failed.traceparent.clone(),
            again: None,
        }
    }

    pub(super) fn undecodable(&self, key: &KeyRow, topic: &Arc<str>, error: &Undecodable) -> Fallen {
        Fallen {
            record: self.mournful(key, topic),
            id: MessageId::from(self.message_id),
            attempt: self.attempt(key),
            code: error.code.to_owned(),
            class: DECODE,
            text: error.text.clone(),
            failed_at: Utc::now(),
            traceparent: None,
            again: None,
        }
    }

    /// A dead letter that a crash or a refusal has left to be published.
    pub(super) fn condemned(&self, key: &KeyRow, topic: &Arc<str>) -> Fallen {
        let class = [TRANSIENT, PANIC, DECODE, CRASH]
            .into_iter()
            .find(|class| Some(*class) == self.error_class.as_deref());
        Fallen {
            record: self.mournful(key, topic),
            id: MessageId::from(self.message_id),
            attempt: if self.replay_id.is_some() { 1 } else { u32::try_from(key.attempts).unwrap_or(1) },
            code: self.error_code.clone().unwrap_or_else(|| "handler".to_owned()),
            class: class.unwrap_or(PERMANENT),
            text: self.error_text.clone().unwrap_or_default(),
            failed_at: self.failed_at.unwrap_or_else(Utc::now),
            traceparent: self.failed_traceparent.clone(),
            again: None,
        }
    }

    /// The record with the time of its first failure, which no header says: it failed here.
    fn mournful(&self, key: &KeyRow, topic: &Arc<str>) -> Arc<Record> {
        let mut record = self.record(key, topic);
        if let (RecordHeaders::Read(list), None, Some(first)) =
            (&mut record.headers, self.replay_id, key.first_failed_at)
        {
            set_once(list, names::FIRST_FAILED_AT, ce_time(first));
        }
        Arc::new(record)
    }
}

fn set_once(list: &mut Headers, name: &str, value: String) {
    if list.get(name).is_none() {
        list.set(name, value);
    }
}
