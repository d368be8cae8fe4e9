//! Every statement of the index. Sets of rows go in one statement; rows are locked in the order of their keys.

mod failures;
mod items;
mod outcomes;
mod purge;
mod records;
mod topics;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::batch::Error;
use super::letter::Letter;
use super::merge::Standing;
use super::record::Raw;

pub(super) use failures::{add_failures, add_hours};
pub(super) use items::{insert_items, lock_items, update_items};
pub(super) use outcomes::{add_outcomes, outcomes_of, settle_failed, settle_told};
pub(super) use purge::{purge_items, purge_rest};
pub(super) use records::{draw_ids, insert_records, known_places};
pub(super) use topics::put_topics;

/// What makes two dead letters one group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FailureKey {
    dlt_topic: String,
    group: String,
    source_topic: String,
    error_code: String,
    error_class: String,
    event_type: String,
}

impl FailureKey {
    pub(super) fn of(raw: &Raw, letter: &Letter) -> Self {
        Self {
            dlt_topic: raw.topic.clone(),
            group: letter.group.clone(),
            source_topic: letter.source_topic.clone(),
            error_code: letter.error_code.clone(),
            error_class: letter.error_class.clone(),
            event_type: letter.event_type.clone(),
        }
    }
}

/// A record to insert.
#[derive(Debug)]
pub(super) struct NewRecord<'a> {
    pub(super) record_id: i64,
    pub(super) raw: &'a Raw,
    pub(super) letter: &'a Letter,
}

/// An item while a batch is worked on.
#[derive(Debug)]
pub(super) struct ItemRow<'a> {
    pub(super) item_id: Uuid,
    pub(super) is_new: bool,
    pub(super) changed: bool,
    pub(super) standing: Standing,
    pub(super) failure_id: i64,
    pub(super) record_id: i64,
    pub(super) deaths: i32,
    pub(super) replays: i32,
    pub(super) first_dead_at: DateTime<Utc>,
    /// The latest dead letter, when it is of this batch.
    pub(super) source: Option<&'a (Raw, Letter)>,
}
