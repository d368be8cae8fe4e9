//! Every statement of replays. Whoever drives a run writes only while its lease lasts.

mod drive;
mod lease;
mod start;

use std::time::Duration;

use sqlx::postgres::types::PgInterval;

pub(super) use drive::{
    Marked, Standing, add_floors, audit_end, doubt, finish, floors, letters, mark_failed, mark_sending,
    mark_sent, outcomes, overdue, sending_of, stop, unmark,
};
pub(super) use lease::{Claimed, Held, claim, let_go, renew};
pub(super) use start::{find, insert, list, refuse_rest, request_cancel, take, troubles};

fn interval(duration: Duration) -> PgInterval {
    let microseconds = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    PgInterval { months: 0, days: 0, microseconds }
}
