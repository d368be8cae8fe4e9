//! Listing a customer's orders, newest first, page by page.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;
use waybill_event::time;

use super::store::{self, Page};
use super::{Error, Order, Orders, Status, Violation};
use crate::paging::{self, Paged};

/// End of the year 9999, in microseconds since 1970.
const LAST_MICROS: i64 = 253_402_300_799_999_999;

/// Query of `GET /v1/orders`, as text: each parameter is judged by itself, so that the answer names it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ListQuery {
    status: Option<String>,
    created_from: Option<String>,
    created_to: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// What selects the orders of a list, all pages of it.
#[derive(Debug, PartialEq, Eq)]
struct Filter {
    customer: Uuid,
    status: Option<Status>,
    created_from: Option<DateTime<Utc>>,
    created_to: Option<DateTime<Utc>>,
}

/// Where a page ended: the order before it in the list. Two orders never share one, whatever their times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Creation, to the microsecond.
    pub created_at: DateTime<Utc>,
    /// Order id.
    pub id: Uuid,
}

/// A page of the customer's own orders and the link to the next one.
pub(super) async fn list(orders: &Orders, customer: Uuid, query: ListQuery) -> Result<Paged<Order>, Error> {
    let (filter, limit) = parse(customer, &query)?;
    let after = query.cursor.as_deref().map(|cursor| filter.position(cursor)).transpose()?;
    let page = Page {
        customer,
        status: filter.status,
        created_from: filter.created_from,
        created_to: filter.created_to,
        after: after.map(|position| (position.created_at, position.id)),
        // One more tells whether there is a next page.
        limit: limit + 1,
    };
    let mut connection = orders.gate.acquire().await?;
    let rows = store::list(&mut connection, &page).await?;
    drop(connection);
    Ok(Paged::new(rows, limit, "/v1/orders", &filter.query(), |last| {
        filter.cursor(Position { created_at: last.created_at, id: last.id })
    }))
}

fn parse(customer: Uuid, query: &ListQuery) -> Result<(Filter, i64), Error> {
    let mut found = Vec::new();
    let mut instant = |name: &str, text: &Option<String>| {
        let parsed = time::parse(text.as_deref()?);
        if parsed.is_none() {
            let detail = "must be a time of RFC 3339, for example 2026-01-31T00:00:00Z";
            found.push(Violation::new(format!("/{name}"), detail));
        }
        parsed
    };
    let created_from = instant("createdFrom", &query.created_from);
    let created_to = instant("createdTo", &query.created_to);
    if created_from.zip(created_to).is_some_and(|(from, to)| from >= to) {
        found.push(Violation::new("/createdTo", "must be after createdFrom"));
    }
    let status = query.status.as_deref().and_then(|name| {
        let status = Status::named(name);
        if status.is_none() {
            let names = Status::ALL.map(Status::name).join(", ");
            found.push(Violation::new("/status", format!("must be one of {names}")));
        }
        status
    });
    let limit = paging::limit(query.limit.as_deref()).unwrap_or_else(|violation| {
        found.push(violation);
        0
    });
    if found.is_empty() {
        Ok((Filter { customer, status, created_from, created_to }, limit))
    } else {
        Err(Error::Invalid(found))
    }
}

impl Filter {
    /// The filters as a query; needs no escaping.
    fn query(&self) -> String {
        let instant =
            |name: &str, at: Option<DateTime<Utc>>| at.map(|at| format!("{name}={}", time::ce_time(at)));
        let parts = [
            self.status.map(|status| format!("status={}", status.name())),
            instant("createdFrom", self.created_from),
            instant("createdTo", self.created_to),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("&")
    }

    /// Ties a cursor to its list: eight bytes are plenty against mistakes, and a cursor opens no other data anyway.
    fn tag(&self) -> [u8; 8] {
        let digest: [u8; 32] =
            Sha256::new().chain_update(self.customer).chain_update(self.query()).finalize().into();
        let mut tag = [0; 8];
        tag.copy_from_slice(&digest[..8]);
        tag
    }

    fn cursor(&self, position: Position) -> String {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&position.created_at.timestamp_micros().to_be_bytes());
        bytes[8..24].copy_from_slice(position.id.as_bytes());
        bytes[24..].copy_from_slice(&self.tag());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn position(&self, cursor: &str) -> Result<Position, Error> {
        let bytes: [u8; 32] = URL_SAFE_NO_PAD
            .decode(cursor)
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(Error::InvalidCursor)?;
        let (mut micros, mut id) = ([0; 8], [0; 16]);
        micros.copy_from_slice(&bytes[..8]);
        id.copy_from_slice(&bytes[8..24]);
        // Only times that the database can hold: a forged cursor is no failure of ours.
        let micros = Some(i64::from_be_bytes(micros)).filter(|micros| (0..=LAST_MICROS).contains(micros));
        let created_at = micros.and_then(DateTime::from_timestamp_micros);
        match created_at {
            Some(created_at) if bytes[24..] == self.tag() => {
                Ok(Position { created_at, id: Uuid::from_bytes(id) })
            }
            _ => Err(Error::InvalidCursor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(status: Option<Status>) -> Filter {
        Filter { customer: Uuid::from_u128(1), status, created_from: None, created_to: None }
    }

    #[test]
    fn a_cursor_returns_its_position_under_its_filter_only() {
        let position = Position {
            created_at: DateTime::from_timestamp_micros(1_790_000_000_123_456).unwrap(),
            id: Uuid::now_v7(),
        };
        let cursor = filter(None).cursor(position);
        assert_eq!(filter(None).position(&cursor).unwrap(), position);
        assert!(filter(Some(Status::Expired)).position(&cursor).is_err());
        let other = Filter { customer: Uuid::from_u128(2), ..filter(None) };
        assert!(other.position(&cursor).is_err());
        for damaged in ["", "x", &cursor[1..], &format!("{cursor}AAAA"), "====", "ä"] {
            assert!(filter(None).position(damaged).is_err(), "{damaged}");
        }
    }
}
