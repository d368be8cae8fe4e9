//! Every way in which a history may differ from what a program knows.

use std::borrow::Cow;

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType};

use super::*;

fn migrator(versions: &[i64]) -> Migrator {
    let migration = |version: &i64| {
        let sql = AssertSqlSafe(format!("select {version}")).into_sql_str();
        Migration::new(*version, Cow::Borrowed("known"), MigrationType::Simple, sql, false)
    };
    Migrator::with_migrations(versions.iter().map(migration).collect())
}

/// The history after these have run; later tests damage it.
fn applied(versions: &[i64]) -> Vec<Applied> {
    let row = |migration: &Migration| Applied {
        version: migration.version,
        description: "applied".into(),
        success: true,
        checksum: migration.checksum.to_vec(),
    };
    migrator(versions).iter().map(row).collect()
}

fn versions(names: &[Name]) -> Vec<i64> {
    names.iter().map(|name| name.version).collect()
}

#[test]
fn one_is_the_beginning_of_the_other() {
    let cases: [[&[i64]; 4]; 5] = [
        [&[1, 2, 3], &[], &[1, 2, 3], &[]],
        [&[1, 3], &[1], &[3], &[]],
        [&[1, 3], &[1, 3], &[], &[]],
        [&[1], &[1, 2, 7], &[], &[2, 7]],
        [&[], &[1], &[], &[1]],
    ];
    for [known, history, pending, later] in cases {
        let state = judge(&migrator(known), &applied(history)).expect("fits");
        assert_eq!(versions(&state.pending), pending, "{known:?} on {history:?}");
        let found: Vec<_> = state.later.into_iter().map(|(name, _)| name).collect();
        assert_eq!(versions(&found), later, "{known:?} on {history:?}");
    }
}

#[test]
fn whatever_else_is_another_line_of_versions() {
    let cases: [(&[i64], &[i64], i64); 4] =
        [(&[1, 3], &[1, 2, 3], 2), (&[1, 2, 3], &[1, 3], 3), (&[1, 2, 3], &[1, 2, 4], 4), (&[2], &[1], 1)];
    for (known, history, foreign) in cases {
        match judge(&migrator(known), &applied(history)) {
            Err(Error::Foreign(name)) => assert_eq!(name.version, foreign, "{known:?} on {history:?}"),
            other => panic!("{known:?} on {history:?}: {other:?}"),
        }
    }
}

#[test]
fn a_half_done_or_changed_one_is_named_wherever_it_is() {
    for index in 0..3 {
        let mut half_done = applied(&[1, 2, 3]);
        half_done[index].success = false;
        let told = judge(&migrator(&[1, 2, 3]), &half_done).expect_err("half done").to_string();
        let version = index + 1;
        assert!(
            told.starts_with(&format!("migration 000{version} (applied) of _sqlx_migrations was left half")),
            "{told}"
        );
        assert!(told.contains(&format!("delete from _sqlx_migrations where version = {version}")), "{told}");
        let mut changed = applied(&[1, 2, 3]);
        changed[index].checksum = vec![0xab];
        let told = judge(&migrator(&[1, 2, 3]), &changed).expect_err("changed").to_string();
        let own: String =
            applied(&[1, 2, 3])[index].checksum.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(told.contains(&format!("set checksum = '\\x{own}' where version = {version}")), "{told}");
    }
}

#[test]
fn what_a_later_version_left_half_done_is_told_and_fits_all_the_same() {
    let mut history = applied(&[1, 2, 3]);
    history[2].success = false;
    let state = judge(&migrator(&[1]), &history).expect("fits");
    assert_eq!(state.later.iter().map(|(_, whole)| *whole).collect::<Vec<_>>(), [true, false]);
}
