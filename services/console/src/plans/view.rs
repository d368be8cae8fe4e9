//! Plans as the API shows them; the summary is kept as it is shown.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;
use waybill_service::http::field;

use super::Skip;
use crate::letters::Filter;
use crate::services::contract::ReplaySafety;

/// What a plan is made of: a filter, or ids.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlanRequest {
    /// Which letters. Without a state those that are open, failed again, or in flight (shown as skipped).
    #[serde(deserialize_with = "field::object")]
    pub filter: Filter,
    /// Exactly these, instead of a filter; at most 1,000.
    #[schema(max_items = 1000)]
    pub ids: Option<Vec<Uuid>>,
    /// Letters at most, those that died first, and last those that no replay can take; 100 if absent, at most 100,000.
    #[serde(deserialize_with = "field::optional_integer::<1, 100_000, _, _>")]
    #[schema(minimum = 1, maximum = 100_000)]
    pub limit: Option<i64>,
    /// Everything is meant; needed where neither filter nor ids are given.
    pub all: bool,
}

/// What the plan does to one group's letters on one topic.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Target {
    /// Dead-letter topic.
    pub topic: String,
    /// Topic that the messages came from.
    pub source_topic: String,
    /// The one group that will get them.
    pub consumer_group: String,
    /// Where they are sent; null when nobody would read it.
    pub target_topic: Option<String>,
    /// Service that consumes as this group.
    pub service: Option<String>,
    /// Declared by the group.
    pub replay_safety: Option<ReplaySafety>,
    /// `unordered`, `key_ordered` or `partition_ordered`.
    pub order: Option<String>,
    /// Letters that will be sent.
    pub ready: i64,
    /// Their keys.
    pub keys: i64,
    /// The smallest of them.
    pub first_key: Option<String>,
    /// The largest.
    pub last_key: Option<String>,
    /// Letters that will not be sent, by reason.
    #[schema(value_type = BTreeMap<String, i64>)]
    pub skipped: BTreeMap<Skip, i64>,
}

/// A letter that will not be sent.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Skipped {
    /// Item.
    pub item_id: Uuid,
    /// Why.
    pub reason: Skip,
    /// More about it.
    pub detail: Option<String>,
}

/// A plan. It holds the letters that were known when it was made; what dies later never joins it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    /// For `POST /v1/dlt/replays`.
    pub plan_id: Uuid,
    /// When.
    pub made_at: DateTime<Utc>,
    /// By whom.
    pub made_by: Uuid,
    /// Of what.
    pub request: PlanRequest,
    /// SHA-256 of what will be sent, in order.
    pub hash: String,
    /// Letters that will be sent.
    pub ready: i64,
    /// Letters that will not.
    pub skipped: i64,
    /// Letters that the request is about: those beyond its limit are neither ready nor skipped.
    pub matched: i64,
    /// A group asks for reconciling first: the replay must say that it was done.
    pub reconcile_first: bool,
    /// By topic and group.
    pub targets: Vec<Target>,
    /// The first 100 that will not be sent.
    pub skipped_items: Vec<Skipped>,
}

/// The part of a plan that is stored as JSON.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Summary {
    pub(super) reconcile_first: bool,
    pub(super) targets: Vec<Target>,
    pub(super) skipped_items: Vec<Skipped>,
    #[serde(default)]
    pub(super) matched: i64,
}
