//! The consumer and its park, by the names that operators use.

use std::error::Error;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::time::timeout;
use waybill_consumer::{
    Blocked, Check, Checked, InboxState, OperationError, Operations, ParkedGauge, ParkedKey,
    SubscriptionState,
};

use crate::api;

/// Longest wait for the counts.
const COUNTING: Duration = Duration::from_secs(2);

/// What the routes ask.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    pub(super) operations: Operations,
    /// The installation's, before every topic and group.
    pub(super) prefix: String,
}

impl Lines {
    /// Also while the database is away: what is blocked and why is asked for then, and is of this process.
    pub(super) async fn subscriptions(&self) -> Vec<api::Subscription> {
        let (mut subscriptions, mut answers) = (Vec::new(), true);
        for state in self.operations.subscriptions() {
            let parked = if answers { self.parked(&state).await } else { None };
            answers = parked.is_some();
            let SubscriptionState { topic, group, order, tiers, replay_safety, breaker, blocked } = state;
            subscriptions.push(api::Subscription {
                topic,
                group,
                order: order.to_owned(),
                tiers,
                replay_safety: replay_safety.as_str().to_owned(),
                breaker: breaker.phase.as_str().to_owned(),
                breaker_reason: breaker.reason,
                parked_keys: parked.map(|parked| parked.keys),
                parked_messages: parked.map(|parked| parked.messages),
                blocked: blocked.into_iter().map(|blocked| self.blocked(blocked)).collect(),
            });
        }
        subscriptions
    }

    /// `None`: the database does not answer in time.
    async fn parked(&self, state: &SubscriptionState) -> Option<ParkedGauge> {
        let counted = timeout(COUNTING, self.operations.parked(&state.topic, &state.group)).await;
        let error = match counted {
            Ok(Ok(parked)) => return Some(parked),
            Ok(Err(error)) => {
                format!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default())
            }
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::warn!(error, "what is parked cannot be counted");
        None
    }

    pub(super) async fn check(
        &self,
        topic: &str,
        group: &str,
        messages: Vec<Check>,
    ) -> Result<Vec<api::CheckedMessage>, OperationError> {
        let checked = self.operations.check(topic, group, messages).await?;
        Ok(checked.into_iter().map(api::CheckedMessage::from).collect())
    }

    /// Behind the id `after`, with the id of each.
    pub(super) async fn parked_keys(
        &self,
        topic: Option<&str>,
        group: Option<&str>,
        after: i64,
        limit: i64,
    ) -> Result<Vec<(i64, api::Key)>, OperationError> {
        let keys = self.operations.parked_keys(topic, group, after, limit).await?;
        Ok(keys.into_iter().map(|key| (key.id, self.key(key))).collect())
    }

    pub(super) async fn release(
        &self,
        topic: &str,
        group: &str,
        key: &[u8],
        keyless: bool,
    ) -> Result<bool, OperationError> {
        self.operations.release(topic, group, key, keyless).await
    }

    fn blocked(&self, blocked: Blocked) -> api::Blocked {
        let Blocked { group: _, topic, partition, reason, error } = blocked;
        api::Blocked { topic: self.without_prefix(topic), partition, reason: reason.to_owned(), error }
    }

    fn key(&self, parked: ParkedKey) -> api::Key {
        let (key, key_encoding) = match String::from_utf8(parked.key) {
            // A zero byte is refused in any text that is sent here: the key must come back as it is told.
            Ok(text) if !parked.keyless && !text.contains('\0') => (text, api::KeyEncoding::Utf8),
            Ok(text) => (STANDARD.encode(text), api::KeyEncoding::Base64),
            Err(error) => (STANDARD.encode(error.as_bytes()), api::KeyEncoding::Base64),
        };
        api::Key {
            topic: self.without_prefix(parked.topic),
            group: self.without_prefix(parked.consumer_group),
            key,
            key_encoding,
            keyless: parked.keyless,
            state: parked.state,
            attempts: parked.attempts,
            due_at: parked.due_at,
            parked_at: parked.parked_at,
            messages: parked.messages,
            head: parked.head,
            error_code: parked.error_code,
        }
    }

    fn without_prefix(&self, name: String) -> String {
        name.strip_prefix(&self.prefix).map(str::to_owned).unwrap_or(name)
    }
}

impl From<Checked> for api::CheckedMessage {
    fn from(checked: Checked) -> Self {
        let Checked { message_id, inbox, replay_id, decodes } = checked;
        let inbox = inbox.map(|state| match state {
            InboxState::Done => api::Inbox::Done,
            InboxState::Dead => api::Inbox::Dead,
        });
        let decode_error = decodes.err().map(str::to_owned);
        Self { message_id, inbox, replay_id, decodes: decode_error.is_none(), decode_error }
    }
}
