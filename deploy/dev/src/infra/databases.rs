//! The databases that this tool makes, and how it knows them again, on whatever server.
//!
//! Each carries a mark in its comment, and has it before it has its name: a run that is killed half-way leaves an
//! empty database called `waybill_new_…`, which stands in nobody's way. What has no mark is not dropped, migrated or
//! written, whatever its name.

use anyhow::{Context, Result, bail};
use uuid::Uuid;

use super::{DATABASE_URL, Source, postgres::query, url};
use crate::layout::Workspace;

/// Those of the services, in the order in which they are made.
pub(crate) const SERVICES: [&str; 4] = ["orders", "points", "notifications", "console"];

/// A server, as far as it holds databases of this checkout.
#[derive(Debug)]
pub(crate) struct Server {
    admin_url: String,
    given: bool,
    mark: String,
}

enum Owner {
    Nobody,
    This,
    /// The comment, which may tell whose it is.
    Other(String),
}

impl Server {
    /// A server that answers.
    pub(crate) fn new(workspace: &Workspace, source: Source, admin_url: &str) -> Result<Self> {
        let mark = format!("cargo dev {}", workspace.id()?);
        Ok(Self { admin_url: admin_url.to_owned(), given: source == Source::Environment, mark })
    }

    /// The server that the environment names, if it does.
    pub(crate) fn given(workspace: &Workspace, given: &super::Given) -> Result<Option<Self>> {
        let admin_url = given.database.as_deref().map(url::admin);
        admin_url.map(|url| Self::new(workspace, Source::Environment, &url)).transpose()
    }

    /// Refuses, before anything is changed, a name that is taken and a role that may not create what is missing.
    /// Without names: whoever may not create any.
    pub(crate) fn check(&self, names: &[&str]) -> Result<()> {
        let mut missing = names.is_empty();
        for name in names {
            match self.owner(name)? {
                Owner::Nobody => missing = true,
                Owner::This => {}
                Owner::Other(comment) => return Err(self.refusal(name, &comment)),
            }
        }
        let sql = "select rolcreatedb or rolsuper from pg_roles where rolname = current_user";
        if missing && self.ask(sql)? != "t" {
            let role = self.ask("select current_user")?;
            bail!("{} may not create databases: alter role \"{role}\" createdb", self.shown("the role"));
        }
        Ok(())
    }

    /// Creates a database unless it is there and this checkout's.
    pub(crate) fn create(&self, name: &str) -> Result<()> {
        match self.owner(name)? {
            Owner::This => Ok(()),
            Owner::Other(comment) => Err(self.refusal(name, &comment)),
            Owner::Nobody => {
                let new = format!("waybill_new_{}", Uuid::new_v4().simple());
                self.ask(&format!("create database {new}"))?;
                self.mark(&new)?;
                self.ask(&format!("alter database {new} rename to {name}")).map(drop)
            }
        }
    }

    /// Creates a database anew, whoever is connected to the old one.
    pub(crate) fn recreate(&self, name: &str) -> Result<()> {
        if let Owner::This = self.owner(name)? {
            self.ask(&format!("drop database {name} with (force)"))?;
        }
        self.create(name)
    }

    fn owner(&self, name: &str) -> Result<Owner> {
        let comment = "coalesce(shobj_description(oid, 'pg_database'), '')";
        // With a letter before it, so that no comment differs from no database.
        let told = self.ask(&format!("select ':' || {comment} from pg_database where datname = '{name}'"))?;
        match told.strip_prefix(':') {
            None => Ok(Owner::Nobody),
            Some(comment) if comment == self.mark => Ok(Owner::This),
            Some("") if !self.given && self.is_a_stacks(name)? => self.mark(name).map(|()| Owner::This),
            Some(comment) => Ok(Owner::Other(comment.to_owned())),
        }
    }

    /// On a server of this checkout's own: made by a version without marks, or by the script of the containers.
    fn is_a_stacks(&self, name: &str) -> Result<bool> {
        let sql = "select to_regnamespace('messaging') is not null or to_regnamespace('console') is not null
            or not exists (select from pg_class where oid >= 16384)";
        Ok(query(&url::with_database(&self.admin_url, name), sql)? == "t")
    }

    fn mark(&self, name: &str) -> Result<()> {
        self.ask(&format!("comment on database {name} is '{}'", self.mark)).map(drop)
    }

    fn ask(&self, sql: &str) -> Result<String> {
        query(&self.admin_url, sql).with_context(|| self.shown("the server cannot be used"))
    }

    fn refusal(&self, name: &str, comment: &str) -> anyhow::Error {
        let whose =
            if comment.starts_with("cargo dev ") { "another checkout's" } else { "not made by cargo dev" };
        let what = self.shown(&format!("the name of the database \"{name}\" is taken, it is {whose}"));
        anyhow::anyhow!(
            "{what}, and it is left as it is. Drop or rename it, or use another server. If it is this checkout's after \
             all: comment on database {name} is '{}'",
            self.mark
        )
    }

    /// What is wrong, behind the variable and the server that it is wrong with.
    fn shown(&self, what: &str) -> String {
        let server = url::shown(&self.admin_url);
        if self.given { format!("{DATABASE_URL}, {server}: {what}") } else { format!("{server}: {what}") }
    }
}
