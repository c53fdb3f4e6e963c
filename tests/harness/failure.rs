//! The parts of an error that the server reported.

use postgres::Error;
use std::fmt::Debug;

/// What a client is told when a statement is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub sqlstate: String,
    pub message: String,
    /// Empty when the error has none, as is `hint`.
    pub detail: String,
    pub hint: String,
}

impl Failure {
    /// The failure of a statement that must fail.
    pub fn of<T: Debug>(result: Result<T, Error>) -> Failure {
        let error = result.expect_err("the statement should have failed");
        let Some(db) = error.as_db_error() else { panic!("not an error of the server: {error}") };
        Failure {
            sqlstate: db.code().code().into(),
            message: db.message().into(),
            detail: db.detail().unwrap_or_default().into(),
            hint: db.hint().unwrap_or_default().into(),
        }
    }

    /// All of the text in one string.
    pub fn text(&self) -> String {
        format!("{}\n{}\n{}", self.message, self.detail, self.hint)
    }
}
