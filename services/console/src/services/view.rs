//! What is passed on, as the API shows it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use waybill_service::http::field;

use super::Fault;

/// Longest name of a service, topic or group, in characters: Kafka's bound of topics.
pub(super) const LONGEST_NAME: usize = 249;

/// What one service says, or why it does not.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Said<T> {
    /// Service.
    pub service: String,
    /// Why there is nothing; null when it has answered.
    pub error: Option<String>,
    /// What it lists.
    pub list: Vec<T>,
    /// Cursor of its next page.
    #[schema(value_type = Option<Object>)]
    pub next: Option<Value>,
}

/// What every service says.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Merged<T> {
    /// One for each service that was asked.
    pub services: Vec<Said<T>>,
}

impl<T> Said<T> {
    pub(crate) fn of(service: String, said: Result<(Vec<T>, Option<Value>), Fault>) -> Self {
        match said {
            Ok((list, next)) => Self { service, error: None, list, next },
            Err(fault) => Self { service, error: Some(fault.to_string()), list: Vec::new(), next: None },
        }
    }
}

/// Of which subscription.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// Source topic, without prefix.
    #[serde(deserialize_with = "field::text::<1, LONGEST_NAME, _>")]
    #[schema(min_length = 1, max_length = 249)]
    pub topic: String,
    /// Consumer group, without prefix.
    #[serde(deserialize_with = "field::text::<1, LONGEST_NAME, _>")]
    #[schema(min_length = 1, max_length = 249)]
    pub group: String,
}

/// Which key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Source topic, without prefix.
    #[serde(deserialize_with = "field::text::<1, LONGEST_NAME, _>")]
    #[schema(min_length = 1, max_length = 249)]
    pub topic: String,
    /// Consumer group, without prefix.
    #[serde(deserialize_with = "field::text::<1, LONGEST_NAME, _>")]
    #[schema(min_length = 1, max_length = 249)]
    pub group: String,
    /// As `key_encoding` says.
    #[schema(min_length = 0)]
    pub key: String,
    /// `utf8` or `base64`.
    #[serde(default = "utf8", deserialize_with = "field::text::<1, 32, _>")]
    #[schema(min_length = 1, max_length = 32)]
    pub key_encoding: String,
    /// One message without key.
    #[serde(default)]
    pub keyless: bool,
}

fn utf8() -> String {
    "utf8".to_owned()
}
