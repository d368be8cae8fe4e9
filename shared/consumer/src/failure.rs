//! Why a message was not handled, and what the runtime does about it.

/// A handler's verdict on a message it could not handle.
#[derive(Debug)]
pub enum Failure {
    /// Worth trying again: the message itself is not at fault.
    Transient(anyhow::Error),
    /// Will fail every time: the message goes to the dead-letter topic.
    Permanent(anyhow::Error),
}

impl Failure {
    /// A [`Failure::Transient`] from any error.
    pub fn transient(error: impl Into<anyhow::Error>) -> Self {
        Self::Transient(error.into())
    }

    /// A [`Failure::Permanent`] from any error.
    pub fn permanent(error: impl Into<anyhow::Error>) -> Self {
        Self::Permanent(error.into())
    }

    /// The error inside.
    #[must_use]
    pub const fn error(&self) -> &anyhow::Error {
        match self {
            Self::Transient(error) | Self::Permanent(error) => error,
        }
    }

    /// The error and its causes; one that the error before it quotes is not repeated.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for cause in self.error().chain().map(ToString::to_string) {
            if text.contains(&cause) {
                continue;
            }
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
        text
    }

    pub(crate) fn into_error(self) -> anyhow::Error {
        match self {
            Self::Transient(error) | Self::Permanent(error) => error,
        }
    }

    /// Stable code for headers and metrics: `sqlstate_<code>` for an error of the database, else `handler`.
    #[must_use]
    pub fn code(&self) -> String {
        match self.database().and_then(sqlstate) {
            Some(state) => format!("sqlstate_{state}"),
            None => "handler".to_owned(),
        }
    }

    /// The server refused a statement, and has aborted the transaction, or the connection is gone.
    pub(crate) fn broke_transaction(&self) -> bool {
        self.database().is_some_and(|error| error.as_database_error().is_some() || is_connection_lost(error))
    }

    fn database(&self) -> Option<&sqlx::Error> {
        self.error().chain().find_map(|cause| cause.downcast_ref::<sqlx::Error>())
    }

    /// The connection is gone, whoever's message was being handled: no attempt is counted.
    pub(crate) fn lost_connection(&self) -> bool {
        self.database().is_some_and(is_connection_lost)
    }

    /// A deadlock or serialization failure comes from the batch as a whole and names none of its messages.
    pub(crate) fn names_no_message(&self) -> bool {
        self.database().is_some_and(is_rollback)
    }
}

/// Permanent is what the message's content explains: data exceptions (class 22), integrity violations (23),
/// cardinality (21), errors raised by the service's own functions (`P0001`), missing rows and values that cannot be
/// converted. All else is transient, on purpose also unknown tables and missing rights: a wrong "transient" stops
/// one partition visibly, a wrong "permanent" would empty the topic into the dead letters.
impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        let permanent = match &error {
            sqlx::Error::Database(database) => database.code().is_some_and(|state| {
                state.starts_with("22")
                    || state.starts_with("23")
                    || state.starts_with("21")
                    || state == "P0001"
            }),
            sqlx::Error::RowNotFound
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::Encode(_) => true,
            _ => false,
        };
        if permanent { Self::permanent(error) } else { Self::transient(error) }
    }
}

pub(crate) fn is_rollback(error: &sqlx::Error) -> bool {
    sqlstate(error).is_some_and(|state| state.starts_with("40"))
}

pub(crate) fn is_connection_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => true,
        // 25P03 and 25P04: the server ended the session by its idle or transaction timeout.
        _ => sqlstate(error).is_some_and(|state| {
            state.starts_with("08") || state.starts_with("57P") || state == "25P03" || state == "25P04"
        }),
    }
}

fn sqlstate(error: &sqlx::Error) -> Option<std::borrow::Cow<'_, str>> {
    error.as_database_error()?.code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_is_found_inside_a_wrapped_error() {
        let lost =
            Failure::Permanent(anyhow::Error::from(sqlx::Error::PoolTimedOut).context("reading prices"));
        assert!(lost.lost_connection());
        assert!(!Failure::permanent(sqlx::Error::RowNotFound).lost_connection());
    }

    #[test]
    fn causes_are_told_once() {
        let error = anyhow::anyhow!("disk full").context("cannot write: disk full").context("saving");
        assert_eq!(Failure::transient(error).text(), "saving: cannot write: disk full");
    }

    #[test]
    fn what_the_message_explains_is_permanent_and_the_rest_transient() {
        assert!(matches!(Failure::from(sqlx::Error::RowNotFound), Failure::Permanent(_)));
        assert!(matches!(Failure::from(sqlx::Error::PoolTimedOut), Failure::Transient(_)));
        assert_eq!(Failure::transient(anyhow::anyhow!("x")).code(), "handler");
    }
}
