//! The little this tool must know of PostgreSQL URLs.

use anyhow::{Result, bail};

/// Refuses what is not a PostgreSQL URL with a server in it.
pub(crate) fn check(url: &str) -> Result<()> {
    let rest = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.starts_with('/') => Ok(()),
        // The value is not repeated: it may hold a password.
        _ => bail!("{} must look like postgres://user[:password]@host[:port]/database", super::DATABASE_URL),
    }
}

/// The same server, another database.
pub(crate) fn with_database(url: &str, name: &str) -> String {
    let (url, query) = url.split_once('?').map_or((url, None), |(url, query)| (url, Some(query)));
    let authority = url.find("://").map_or(0, |at| at + 3);
    let end = url[authority..].find('/').map_or(url.len(), |at| authority + at);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{name}{query}", &url[..end])
}

/// For people: without password and parameters.
pub(crate) fn shown(url: &str) -> String {
    let url = url.split_once('?').map_or(url, |(url, _)| url);
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    // A password may hold an @ of its own; a host cannot.
    let Some((user, server)) = rest.rsplit_once('@') else { return url.to_owned() };
    let user = user.split_once(':').map_or(user, |(user, _)| user);
    format!("{scheme}://{user}@{server}")
}

/// The database's name; empty if there is none.
fn database(url: &str) -> &str {
    let url = url.split_once('?').map_or(url, |(url, _)| url);
    let authority = url.find("://").map_or(0, |at| at + 3);
    url[authority..].split_once('/').map_or("", |(_, name)| name)
}

/// Where databases are created and dropped: the given one, unless it is missing or itself one that is recreated.
pub(crate) fn admin(url: &str) -> String {
    match database(url) {
        "" | "prepare" | "orders" | "points" | "notifications" | "console" => with_database(url, "postgres"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_replaced_and_the_rest_kept() {
        assert_eq!(
            with_database("postgres://u:p@h:1/a?sslmode=require", "b"),
            "postgres://u:p@h:1/b?sslmode=require"
        );
        assert_eq!(with_database("postgresql://h", "b"), "postgresql://h/b");
        assert_eq!(with_database("postgres://u@h:1/", "b"), "postgres://u@h:1/b");
    }

    #[test]
    fn a_database_that_is_recreated_is_not_the_one_connected_to() {
        assert_eq!(admin("postgres://h/prepare"), "postgres://h/postgres");
        assert_eq!(admin("postgres://h"), "postgres://h/postgres");
        assert_eq!(admin("postgres://h/mine?a=b"), "postgres://h/mine?a=b");
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(shown("postgres://u:p@ss@h:1/a?password=x"), "postgres://u@h:1/a");
        assert_eq!(shown("postgres://h/a"), "postgres://h/a");
    }

    #[test]
    fn other_schemes_are_refused_without_repeating_the_value() {
        let error = check("mysql://u:secret@h/x").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
        assert!(check("postgres:///x").is_err() && check("postgres://h/x").is_ok());
    }
}
