//! Which dead letters are meant: one filter for lists, plans, archive, restore and export.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use clap::Args;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;
use waybill_event::time;
use waybill_service::http::field;

use super::{Error, store};
use crate::{Names, State};

/// Selects dead letters. What is given must all hold; without anything it selects every one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams, Args)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
#[group(skip)]
pub struct Filter {
    /// Dead-letter topic or source topic, with or without the installation's prefix.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "field::optional_text::<1, 500, _>")]
    #[schema(min_length = 1, max_length = 500)]
    #[param(min_length = 1, max_length = 500)]
    #[arg(long)]
    pub topic: Option<String>,
    /// Consumer group that failed, with or without the prefix.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "field::optional_text::<1, 500, _>")]
    #[schema(min_length = 1, max_length = 500)]
    #[param(min_length = 1, max_length = 500)]
    #[arg(long)]
    pub group: Option<String>,
    /// Message key, as text, which may be empty; of other bytes `base64:` and their base64.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "field::optional_text::<0, 8192, _>"
    )]
    #[schema(min_length = 0, max_length = 8192)]
    #[param(min_length = 0, max_length = 8192)]
    #[arg(long)]
    pub key: Option<String>,
    /// Message id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[arg(long)]
    pub message_id: Option<Uuid>,
    /// Trace id, 32 hex digits.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "field::optional_text::<32, 32, _>")]
    #[schema(min_length = 32, max_length = 32)]
    #[param(min_length = 32, max_length = 32)]
    #[arg(long)]
    pub trace_id: Option<String>,
    /// Stable error code.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "field::optional_text::<1, 255, _>")]
    #[schema(min_length = 1, max_length = 255)]
    #[param(min_length = 1, max_length = 255)]
    #[arg(long)]
    pub error_code: Option<String>,
    /// Error class, for example `permanent` or `transient`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "field::optional_text::<1, 255, _>")]
    #[schema(min_length = 1, max_length = 255)]
    #[param(min_length = 1, max_length = 255)]
    #[arg(long)]
    pub error_class: Option<String>,
    /// Event type, for example `waybill.order.placed`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "field::optional_text::<1, 255, _>")]
    #[schema(min_length = 1, max_length = 255)]
    #[param(min_length = 1, max_length = 255)]
    #[arg(long)]
    pub event_type: Option<String>,
    /// States, separated by commas.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "field::optional_text::<1, 255, _>")]
    #[schema(min_length = 1, max_length = 255)]
    #[param(min_length = 1, max_length = 255)]
    #[arg(long)]
    pub state: Option<String>,
    /// Died at or after, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "field::optional_text::<1, 64, _>")]
    #[schema(min_length = 1, max_length = 64)]
    #[param(min_length = 1, max_length = 64)]
    #[arg(long)]
    pub since: Option<String>,
    /// Died before, RFC 3339; after `since`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "field::optional_text::<1, 64, _>")]
    #[schema(min_length = 1, max_length = 64)]
    #[param(min_length = 1, max_length = 64)]
    #[arg(long)]
    pub until: Option<String>,
    /// At least so many attempts; at most `max_attempts`.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "field::optional_integer::<0, { i32::MAX as i64 }, _, _>"
    )]
    #[schema(minimum = 0, maximum = 2147483647)]
    #[param(minimum = 0, maximum = 2147483647)]
    #[arg(long)]
    pub min_attempts: Option<i32>,
    /// At most so many attempts.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "field::optional_integer::<0, { i32::MAX as i64 }, _, _>"
    )]
    #[schema(minimum = 0, maximum = 2147483647)]
    #[param(minimum = 0, maximum = 2147483647)]
    #[arg(long)]
    pub max_attempts: Option<i32>,
}

/// A filter, judged and looked up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    /// Groups of dead letters; `None`: all.
    pub(crate) failures: Option<Vec<i64>>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) message_id: Option<Uuid>,
    pub(crate) trace_id: Option<String>,
    pub(crate) states: Option<Vec<String>>,
    pub(crate) since: Option<DateTime<Utc>>,
    pub(crate) until: Option<DateTime<Utc>>,
    pub(crate) min_attempts: Option<i32>,
    pub(crate) max_attempts: Option<i32>,
    pub(crate) ids: Option<Vec<Uuid>>,
}

impl Filter {
    /// Every field.
    pub(crate) const FIELDS: [&str; 13] = [
        "topic",
        "group",
        "key",
        "message_id",
        "trace_id",
        "error_code",
        "error_class",
        "event_type",
        "state",
        "since",
        "until",
        "min_attempts",
        "max_attempts",
    ];

    /// Whether it narrows anything but the state.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        Self { state: None, ..self.clone() } == Self::default()
    }

    /// Refuses what narrows letters and no groups: they are counted as a whole.
    pub(crate) fn check_of_groups(&self) -> Result<(), Error> {
        let given = [
            ("/key", self.key.is_some()),
            ("/message_id", self.message_id.is_some()),
            ("/trace_id", self.trace_id.is_some()),
            ("/min_attempts", self.min_attempts.is_some()),
            ("/max_attempts", self.max_attempts.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((pointer, _)) => {
                Err(Error::invalid(pointer, "narrows letters and not groups: list the letters"))
            }
            None => Ok(()),
        }
    }

    /// Judges each part, and looks topics and groups up: a name that is not known is a mistake and no empty list.
    pub(crate) async fn select(&self, db: &mut PgConnection, names: &Names) -> Result<Selection, Error> {
        let states = self.state.as_deref().map(states).transpose()?;
        let key = self.key.as_deref().map(key_bytes).transpose()?;
        let trace = |id: &str| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
        if self.trace_id.as_deref().is_some_and(|id| !trace(id)) {
            return Err(Error::invalid("/trace_id", "must be 32 hex digits"));
        }
        let [since, until] = self.times()?;
        if self.min_attempts.zip(self.max_attempts).is_some_and(|(min, max)| min > max) {
            return Err(Error::invalid("/max_attempts", "must not be below min_attempts"));
        }
        let failures = self.failures(db, names).await?;
        Ok(Selection {
            failures,
            key,
            message_id: self.message_id,
            trace_id: self.trace_id.as_ref().map(|id| id.to_ascii_lowercase()),
            states,
            since,
            until,
            min_attempts: self.min_attempts,
            max_attempts: self.max_attempts,
            ids: None,
        })
    }

    /// A span that can hold something.
    fn times(&self) -> Result<[Option<DateTime<Utc>>; 2], Error> {
        let since = instant("/since", self.since.as_deref())?;
        let until = instant("/until", self.until.as_deref())?;
        if since.zip(until).is_some_and(|(since, until)| since >= until) {
            return Err(Error::invalid("/until", "must be after since"));
        }
        Ok([since, until])
    }

    async fn failures(&self, db: &mut PgConnection, names: &Names) -> Result<Option<Vec<i64>>, Error> {
        let both = |name: &Option<String>| name.as_ref().map(|name| vec![name.clone(), names.full(name)]);
        let (topics, groups) = (both(&self.topic), both(&self.group));
        if let Some(topics) = &topics
            && !store::is_topic(db, topics).await?
        {
            return Err(Error::UnknownName("topic", topics[0].clone()));
        }
        if let Some(groups) = &groups
            && !store::is_group(db, groups).await?
        {
            return Err(Error::UnknownName("group", groups[0].clone()));
        }
        if topics.is_none()
            && groups.is_none()
            && self.error_code.is_none()
            && self.error_class.is_none()
            && self.event_type.is_none()
        {
            return Ok(None);
        }
        let found = store::failure_ids(
            db,
            topics.as_deref(),
            groups.as_deref(),
            self.error_code.as_deref(),
            self.error_class.as_deref(),
            self.event_type.as_deref(),
        );
        Ok(Some(found.await?))
    }
}

fn states(text: &str) -> Result<Vec<String>, Error> {
    let names = text.split(',').map(str::trim);
    let known = |name: &str| State::named(name).map(|state| state.name().to_owned());
    names.map(known).collect::<Option<_>>().ok_or_else(|| {
        let names = State::ALL.map(State::name).join(", ");
        Error::invalid("/state", format!("must be some of {names}, separated by commas"))
    })
}

fn instant(pointer: &'static str, text: Option<&str>) -> Result<Option<DateTime<Utc>>, Error> {
    let Some(text) = text else { return Ok(None) };
    let wrong = || Error::invalid(pointer, "must be a time of RFC 3339, for example 2026-01-31T00:00:00Z");
    time::parse(text).map(Some).ok_or_else(wrong)
}

fn key_bytes(text: &str) -> Result<Vec<u8>, Error> {
    match text.strip_prefix("base64:") {
        Some(text) => STANDARD.decode(text).map_err(|_| Error::invalid("/key", "is not base64")),
        None => Ok(text.as_bytes().to_vec()),
    }
}

/// A key as [`Filter::key`] takes it.
pub(crate) fn key_text(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.starts_with("base64:") && !text.chars().any(char::is_control) => text.to_owned(),
        _ => format!("base64:{}", STANDARD.encode(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_the_text_that_shows_it() {
        for key in [&b"order-1"[..], b"", b"base64:x", &[0, 0xff], "ключ".as_bytes(), b"a\nb"] {
            assert_eq!(key_bytes(&key_text(key)).unwrap(), key);
        }
        assert!(key_bytes("base64:%").is_err());
    }

    #[test]
    fn every_field_is_known_to_queries() {
        let text = |text: &str| Some(text.to_owned());
        let all = Filter {
            topic: text("t"),
            group: text("g"),
            key: text("k"),
            message_id: Some(Uuid::nil()),
            trace_id: text("x"),
            error_code: text("c"),
            error_class: text("d"),
            event_type: text("e"),
            state: text("open"),
            since: text("s"),
            until: text("u"),
            min_attempts: Some(1),
            max_attempts: Some(2),
        };
        let json = serde_json::to_value(&all).unwrap();
        let mut fields: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let mut known = Filter::FIELDS.to_vec();
        fields.sort_unstable();
        known.sort_unstable();
        assert_eq!(fields, known);
        assert!(!all.is_bare() && Filter { state: text("open"), ..Filter::default() }.is_bare());
    }

    #[test]
    fn only_states_that_there_are() {
        assert_eq!(states("open, sent").unwrap(), ["open", "sent"]);
        for wrong in ["open,closed", "", ",", "open,", " "] {
            assert!(states(wrong).is_err(), "{wrong:?}");
        }
    }
}
