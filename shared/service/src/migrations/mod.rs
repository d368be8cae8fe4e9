//! Migrations of a service's database: applied by its verb `migrate`, looked at when it starts.
//!
//! **Promises.** A program serves on every database to which all of its own migrations were applied as it has them,
//! also when a newer version has applied more since: those only add. Such a database is left alone by `migrate`, which
//! says so. Of a history and a program's migrations one is always the beginning of the other; whatever else is found, and
//! a migration that was only half done, is refused with its name and the repair.

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{AssertSqlSafe, PgConnection};

/// Why the migrations of a database do not fit the program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// To be applied first.
    #[error("{migration} has not been applied: run `{program} migrate` first")]
    Pending {
        /// The first that lacks.
        migration: Name,
        /// The program whose migration it is.
        program: &'static str,
    },
    /// Begun and not finished, or marked so by hand.
    #[error(
        "{migration} was left half done. Undo what it has done and forget it: delete from {history} where version = {version}; \
         or finish it by hand: update {history} set success = true where version = {version}",
        history = .0.history, version = .0.version, migration = .0
    )]
    HalfDone(Name),
    /// What was applied is not what this program would apply.
    #[error(
        "{migration} was applied with another text than this program has: use the program that it belongs to. If the \
         schema is the same, say so: update {history} set checksum = '\\x{checksum}' where version = {version}",
        history = .migration.history, version = .migration.version
    )]
    Changed {
        /// Which.
        migration: Name,
        /// That of this program's text, in hexadecimal digits.
        checksum: String,
    },
    /// Neither of this program nor of a later version of it.
    #[error(
        "{migration} is unknown to this program, which has another of its own at that place: the database was migrated by \
         another line of versions. Use a program that has both; or undo it and forget it: delete from {history} where \
         version = {version}",
        history = .0.history, version = .0.version, migration = .0
    )]
    Foreign(Name),
    /// The history cannot be read.
    #[error("the history of migrations {history} cannot be read")]
    Unreadable {
        /// Its table.
        history: String,
        /// What the database says.
        #[source]
        source: sqlx::Error,
    },
    /// A migration failed.
    #[error("migrations of {history} cannot be applied")]
    Failed {
        /// Its table.
        history: String,
        /// What the driver says.
        #[source]
        source: MigrateError,
    },
}

/// A migration, by the table of its history, its version and its description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The table.
    pub history: String,
    /// The number before its file's name.
    pub version: i64,
    /// The rest of that name.
    pub description: String,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "migration {:04} ({}) of {}", self.version, self.description, self.history)
    }
}

/// A row of a history.
#[derive(Debug, sqlx::FromRow)]
struct Applied {
    version: i64,
    description: String,
    success: bool,
    checksum: Vec<u8>,
}

/// What a history and a program's migrations come to.
#[derive(Debug, PartialEq)]
struct State {
    /// Of this program, not applied yet.
    pending: Vec<Name>,
    /// Applied by a later version, with whether each is whole.
    later: Vec<(Name, bool)>,
}

/// Applies what is pending. The later ones that a newer version has applied are returned and left alone.
///
/// # Errors
/// Every [`Error`] but [`Error::Pending`].
pub async fn apply(connection: &mut PgConnection, mut migrator: Migrator) -> Result<Vec<Name>, Error> {
    let State { pending, later } = state(connection, &migrator).await?;
    if let Some((half_done, _)) = later.iter().find(|(_, whole)| !whole) {
        return Err(Error::HalfDone(half_done.clone()));
    }
    if !pending.is_empty() {
        // Should a newer version be migrating at this moment, this one waits for it and then finds its own applied.
        migrator.set_ignore_missing(true);
        let failed = |source| Error::Failed { history: migrator.table_name.to_string(), source };
        migrator.run(&mut *connection).await.map_err(failed)?;
    }
    Ok(later.into_iter().map(|(name, _)| name).collect())
}

/// Checks at start that the migrations of `program` have been applied, and as it has them. What a later version has
/// applied besides is not looked at.
///
/// # Errors
/// [`Error::Pending`], [`Error::HalfDone`], [`Error::Changed`], [`Error::Foreign`], [`Error::Unreadable`].
pub async fn require(
    connection: &mut PgConnection,
    program: &'static str,
    migrators: &[Migrator],
) -> Result<(), Error> {
    for migrator in migrators {
        let State { pending, later } = state(connection, migrator).await?;
        if let Some(migration) = pending.into_iter().next() {
            return Err(Error::Pending { migration, program });
        }
        if let Some((newest, _)) = later.last() {
            tracing::info!(
                history = newest.history,
                newest = newest.version,
                "the database is of a later version"
            );
        }
    }
    Ok(())
}

async fn state(connection: &mut PgConnection, migrator: &Migrator) -> Result<State, Error> {
    // Hidden in sqlx's documentation, and named nowhere else.
    let history = &*migrator.table_name;
    let unreadable = |source| Error::Unreadable { history: history.to_owned(), source };
    let found = sqlx::query_scalar!(r#"select to_regclass($1) is not null as "found!""#, history);
    let mut applied = Vec::new();
    if found.fetch_one(&mut *connection).await.map_err(unreadable)? {
        let sql = format!("select version, description, success, checksum from {history} order by version");
        let rows = sqlx::query_as(AssertSqlSafe(sql)).fetch_all(connection).await;
        applied = rows.map_err(unreadable)?;
    }
    judge(migrator, &applied)
}

/// Compares; `applied` is in the order of versions, as the migrator's own are.
fn judge(migrator: &Migrator, applied: &[Applied]) -> Result<State, Error> {
    let name = |version, description: &str| Name {
        history: migrator.table_name.to_string(),
        version,
        description: description.to_owned(),
    };
    let mut known = migrator.iter().filter(|migration| !migration.migration_type.is_down_migration());
    let mut later = Vec::new();
    for row in applied {
        let named = name(row.version, &row.description);
        match known.next() {
            None => later.push((named, row.success)),
            Some(migration) if migration.version != row.version => return Err(Error::Foreign(named)),
            Some(_) if !row.success => return Err(Error::HalfDone(named)),
            Some(migration) if *migration.checksum != *row.checksum => {
                let checksum = migration.checksum.iter().map(|byte| format!("{byte:02x}")).collect();
                return Err(Error::Changed { migration: named, checksum });
            }
            Some(_) => {}
        }
    }
    let pending = known.map(|migration| name(migration.version, &migration.description)).collect();
    Ok(State { pending, later })
}

#[cfg(test)]
mod tests;
