//! What only reads passes, and everything else does not: by the numbers of the threat list, and with queries of every day.

#![allow(clippy::unwrap_used, reason = "what is unexpected in a test is a failure")]

mod honest;
mod mutations;
mod mysql;
mod names;
mod postgres;
mod snowflake;
mod sqlite;

use sql::{Dialect, Statement, check};

/// Every one of them is refused, with words.
#[track_caller]
fn refused(dialect: Dialect, statements: &[&str]) {
    let passed: Vec<_> = statements
        .iter()
        .filter_map(|text| check(dialect, text).ok().map(|checked| (text, checked.text)))
        .collect();
    assert!(passed.is_empty(), "these pass: {passed:#?}");
}

/// Every one of them passes, and what it becomes passes unchanged.
#[track_caller]
fn passes(dialect: Dialect, statements: &[&str]) {
    let failed: Vec<_> = statements
        .iter()
        .filter_map(|text| match check(dialect, text) {
            Err(refusal) => Some((text, refusal.why)),
            Ok(checked) => match check(dialect, &checked.text) {
                Ok(again) if again.text == checked.text => None,
                other => Some((text, format!("becomes {}, which becomes {other:?}", checked.text))),
            },
        })
        .collect();
    assert!(failed.is_empty(), "these do not pass: {failed:#?}");
}

#[track_caller]
fn checked(dialect: Dialect, text: &str) -> Statement {
    check(dialect, text).unwrap_or_else(|refusal| panic!("{text}: {}", refusal.why))
}

fn names(names: &[sql::Name]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}
