//! Who did what: rows that are only ever added, by a trigger in the database.

mod http;
mod store;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;
use waybill_service::auth::Principal;

pub(crate) use http::router;
pub(crate) use store::{add, add_results};

/// What there is to do: an act's, and what came of it where that is known later.
pub(crate) const VERBS: [&str; 15] = [
    "plan",
    "replay",
    "replay_finished",
    "cancel",
    "archive",
    "restore",
    "export",
    "resume",
    "resume_finished",
    "release",
    "release_finished",
    "task_retry",
    "task_retry_finished",
    "task_cancel",
    "task_cancel_finished",
];

/// One act, before it is written down.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    subject: Uuid,
    roles: Vec<String>,
    verb: &'static str,
    filter: Value,
    plan_hash: Option<String>,
    reference: Option<Uuid>,
    counts: Map<String, Value>,
}

impl Entry {
    /// `filter`: what the act was asked for, as JSON.
    pub(crate) fn new(principal: &Principal, verb: &'static str, filter: &impl Serialize) -> Self {
        debug_assert!(VERBS.contains(&verb), "{verb} cannot be searched for");
        Self {
            subject: principal.customer,
            roles: principal.roles.names().map(str::to_owned).collect(),
            verb,
            filter: serde_json::to_value(filter).unwrap_or_default(),
            plan_hash: None,
            reference: None,
            counts: Map::new(),
        }
    }

    /// Of an act that nobody is present for: the end of a run that `subject` has started.
    pub(crate) fn of(subject: Uuid, verb: &'static str) -> Self {
        debug_assert!(VERBS.contains(&verb), "{verb} cannot be searched for");
        Self {
            subject,
            roles: Vec::new(),
            verb,
            filter: Value::Object(Map::new()),
            plan_hash: None,
            reference: None,
            counts: Map::new(),
        }
    }

    pub(crate) fn plan(mut self, hash: &str) -> Self {
        self.plan_hash = Some(hash.to_owned());
        self
    }

    pub(crate) fn reference(mut self, id: Uuid) -> Self {
        self.reference = Some(id);
        self
    }

    pub(crate) fn count(mut self, name: &str, count: impl Into<Value>) -> Self {
        self.counts.insert(name.to_owned(), count.into());
        self
    }
}

/// One act.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Act {
    /// Grows with time.
    pub audit_id: i64,
    /// When.
    pub at: chrono::DateTime<chrono::Utc>,
    /// Who: the subject of the token.
    pub subject: Uuid,
    /// With which roles; none for the end of a run.
    pub roles: Vec<String>,
    /// What: `plan`, `replay`, `replay_finished`, `cancel`, `archive`, `restore`, `export`, …
    pub verb: String,
    /// What it was asked for.
    pub filter: Value,
    /// Hash of the plan that was carried out.
    pub plan_hash: Option<String>,
    /// Plan, run or task.
    pub reference: Option<Uuid>,
    /// What came of it.
    pub counts: Value,
    /// What it did to each message; only where one act is asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub results: Option<Vec<ActResult>>,
}

/// What an act did to a message.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ActResult {
    /// Item.
    pub item_id: Uuid,
    /// Consumer group.
    pub consumer_group: String,
    /// Source topic.
    pub source_topic: String,
    /// Message id.
    pub message_id: Uuid,
    /// What became of it.
    pub result: String,
    /// Why.
    pub detail: Option<String>,
}

/// A page of the audit, latest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Acts {
    /// Acts.
    pub acts: Vec<Act>,
    /// `before` of the next page; null on the last.
    #[schema(required = true)]
    pub next: Option<i64>,
}
