//! Runs as the API shows them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;
use waybill_service::http::field;

/// Carry a plan out.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// The plan.
    pub plan_id: Uuid,
    /// Records a second at most; 50 if absent, at most 500.
    #[serde(default = "rate", deserialize_with = "field::integer::<1, 500, _, _>")]
    #[schema(default = 50, minimum = 1, maximum = 500)]
    pub rate: i32,
    /// So many records first; the rest only after their outcomes are good. 1 if absent, 0: none.
    #[serde(default = "canary", deserialize_with = "field::integer::<0, 1000, _, _>")]
    #[schema(default = 1, minimum = 0, maximum = 1000)]
    pub canary: i32,
    /// The run stops after so many failures; 5 if absent.
    #[serde(
        default = "stop_after_failures",
        deserialize_with = "field::integer::<1, { i32::MAX as i64 }, _, _>"
    )]
    #[schema(default = 5, minimum = 1, maximum = 2147483647)]
    pub stop_after_failures: i32,
    /// Somebody has compared with the outside, where a group asks for it.
    #[serde(default)]
    pub acknowledge_reconcile: bool,
}

const fn rate() -> i32 {
    50
}

const fn canary() -> i32 {
    1
}

const fn stop_after_failures() -> i32 {
    5
}

/// Letters of a run by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Not sent yet.
    pub pending: i64,
    /// On their way to Kafka.
    pub sending: i64,
    /// Acknowledged by Kafka, without outcome yet.
    pub sent: i64,
    /// Handled.
    pub resolved: i64,
    /// Died again.
    pub failed_again: i64,
    /// The consumer had finished with them before.
    pub already_processed: i64,
    /// Kafka has not taken them.
    pub failed: i64,
    /// Not sent: something had happened to them since the plan.
    pub refused: i64,
    /// Of `refused` those with which nothing is left to do: handled meanwhile, or put away.
    pub refused_settled: i64,
    /// Not sent, because an earlier one of the key failed, or the run ended.
    pub stopped: i64,
    /// Sent; the consumer has not said in time what became of them.
    pub no_outcome: i64,
}

/// A letter that was not handled.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Trouble {
    /// Item.
    pub item_id: Uuid,
    /// `failed_again`, `failed`, `refused`, `stopped` or `no_outcome`.
    pub state: String,
    /// Why.
    pub detail: Option<String>,
}

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Replay {
    /// In the header `waybill-replay-id` of each of its records.
    pub replay_id: Uuid,
    /// Its plan.
    pub plan_id: Uuid,
    /// `running`, `done`, `stopped` or `cancelled`.
    pub state: String,
    /// Why it ended early.
    pub reason: Option<String>,
    /// By whom.
    pub started_by: Uuid,
    /// When.
    pub started_at: DateTime<Utc>,
    /// When it ended. Outcomes may still come.
    pub finished_at: Option<DateTime<Utc>>,
    /// Records a second at most.
    pub rate: i32,
    /// Records sent first.
    pub canary: i32,
    /// Failures after which it stops.
    pub stop_after_failures: i32,
    /// How often another process has taken it over.
    pub takeovers: i32,
    /// Somebody has asked it to stop.
    pub cancel_requested: bool,
    /// Letters by what became of them.
    pub progress: Progress,
    /// The first 100 letters that were not handled; only where one run is asked for.
    pub troubles: Vec<Trouble>,
}

/// Runs, latest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Replays {
    /// The latest 50.
    pub replays: Vec<Replay>,
}
