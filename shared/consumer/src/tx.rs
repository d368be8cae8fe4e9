//! The transaction as a handler sees it.

use std::ops::{Deref, DerefMut};

use sqlx::PgConnection;

/// The transaction that one message is handled in. It is used as the [`PgConnection`] that it dereferences to:
/// `query.execute(&mut **tx)`, or `f(tx)` where `f` takes a `&mut PgConnection`.
///
/// It sees whether the connection is asked for. A handler that fails without having done so has written nothing, so
/// nothing has to be undone for it: refusing a message costs the others in its batch nothing, where undoing a write costs
/// them a second run.
#[derive(Debug)]
pub struct Tx<'t> {
    connection: &'t mut PgConnection,
    used: bool,
}

impl<'t> Tx<'t> {
    /// For a test that calls a handler itself.
    pub const fn new(connection: &'t mut PgConnection) -> Self {
        Self { connection, used: false }
    }

    /// Whether anything can have been written by it.
    pub(crate) const fn is_used(&self) -> bool {
        self.used
    }
}

/// Nothing can be run by a shared reference to a connection.
impl Deref for Tx<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection
    }
}

impl DerefMut for Tx<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.used = true;
        self.connection
    }
}
