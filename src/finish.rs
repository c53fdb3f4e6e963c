//! `idem_complete`, `idem_fail` and `idem_release`: how a claim ends.

use crate::claim::read_names;
use crate::headers::{self, Headers};
use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::spi::Mode;
use crate::pg::transaction;
use crate::pg::value::Value;
use crate::refusal::Refusal;
use crate::scope::{self, Scope};
use crate::stats::{self, Counter};
use crate::tables::{Outcome, Tables};
use crate::{guard, settings, tenancy};
use std::borrow::Cow;

sql_function!("idem_complete_bytea" => complete_bytea);
sql_function!("idem_complete_text" => complete_text);
sql_function!("idem_fail_bytea" => fail_bytea);
sql_function!("idem_fail_text" => fail_text);
sql_function!("idem_release" => release);

/// Positions of the arguments in `sql/functions.sql`; tenant and endpoint come before them.
mod arg {
    pub const KEY: usize = 2;
    pub const RESPONSE_CODE: usize = 3;
    pub const RESPONSE_BODY: usize = 4;
    pub const RESPONSE_HEADERS: usize = 5;
    pub const RESOURCE_REF: usize = 6;
    pub const ATTEMPT: usize = 7;
    pub const ATTEMPT_OF_RELEASE: usize = 3;
}

/// The first owner's attempt, and what no attempt means.
pub const FIRST_ATTEMPT: i32 = 1;
const SUCCEEDED: &str = "succeeded";
const FAILED: &str = "failed";

fn complete_bytea(args: &Args) -> Result<Answer, Refusal> {
    finish(args, SUCCEEDED, args.bytes(arg::RESPONSE_BODY).map(Cow::Borrowed))
}

fn complete_text(args: &Args) -> Result<Answer, Refusal> {
    finish(args, SUCCEEDED, args.text_bytes(arg::RESPONSE_BODY))
}

fn fail_bytea(args: &Args) -> Result<Answer, Refusal> {
    finish(args, FAILED, args.bytes(arg::RESPONSE_BODY).map(Cow::Borrowed))
}

fn fail_text(args: &Args) -> Result<Answer, Refusal> {
    finish(args, FAILED, args.text_bytes(arg::RESPONSE_BODY))
}

fn finish(args: &Args, status: &'static str, body: Option<Cow<[u8]>>) -> Result<Answer, Refusal> {
    let scope = read_claimed_scope(args)?;
    let Some(response_code) = args.int(arg::RESPONSE_CODE).filter(|code| (100..=599).contains(code)) else {
        return Err(Refusal::invalid(
            "response_code must be between 100 and 599",
            args.int(arg::RESPONSE_CODE).map_or("It is null.".into(), |code| format!("It is {code}.")),
            "Pass the HTTP status that the client is sent, for example 201.",
        )
        .naming(&scope.endpoint, Some(&scope.key)));
    };
    let response_headers = match args.jsonb_text(arg::RESPONSE_HEADERS) {
        None => Value::NULL,
        Some(given) => match headers::check(&given).map_err(|r| r.naming(&scope.endpoint, Some(&scope.key)))? {
            Headers::AsGiven => args.unchanged(arg::RESPONSE_HEADERS),
            Headers::Pairs(pairs) => Value::jsonb(&pairs),
        },
    };
    let outcome = Outcome {
        scope: &scope,
        status,
        attempt: args.int(arg::ATTEMPT).unwrap_or(FIRST_ATTEMPT),
        response_code,
        response_headers,
        response_body: body.as_deref(),
        resource_ref: args.unchanged(arg::RESOURCE_REF),
        max_body_bytes: settings::max_body_bytes(),
    };
    let tables = Tables::open(args.schema())?;
    loop {
        if tables.finish(&outcome) {
            guard::closed(&scope);
            let counter = if status == SUCCEEDED { Counter::Completed } else { Counter::Failed };
            stats::count(&scope.endpoint, counter, || tables.is_registered(&scope.endpoint));
            return Ok(Answer::Void);
        }
        let Some(found) = tables.obstacle(&outcome) else { return Err(missing(&tables, &scope)) };
        check_is_latest(&tables, &scope, &found.status, found.attempt)?;
        if found.attempt != outcome.attempt {
            return Err(Refusal::stale_attempt(&scope, &found.status, found.attempt, outcome.attempt));
        }
        if found.same_result {
            return Ok(Answer::Void);
        }
        if found.status != "in_progress" {
            let attempted = if status == SUCCEEDED { "idem_complete" } else { "idem_fail" };
            return Err(Refusal::already_finished(&scope, &found.status, &format!("this {attempted}")));
        }
        if let Some(limit) = found.over_limit {
            let size = outcome.response_body.map_or(0, <[u8]>::len);
            return Err(Refusal::response_too_large(&scope, size, limit));
        }
        // The claim was released and made again between the two statements: this attempt owns it after all.
    }
}

fn release(args: &Args) -> Result<Answer, Refusal> {
    let scope = match read_claimed_scope(args) {
        Ok(scope) => scope,
        Err(refusal) if refusal.sqlstate == crate::refusal::CLAIM_NOT_FOUND => return Ok(Answer::Bool(false)),
        Err(refusal) => return Err(refusal),
    };
    let attempt = args.int(arg::ATTEMPT_OF_RELEASE).unwrap_or(FIRST_ATTEMPT);
    let tables = Tables::open(args.schema())?;
    loop {
        if tables.release(&scope, attempt) {
            guard::closed(&scope);
            stats::count(&scope.endpoint, Counter::Released, || tables.is_registered(&scope.endpoint));
            return Ok(Answer::Bool(true));
        }
        match tables.state(&scope, Mode::Read) {
            None if is_too_new_to_see(&tables, &scope) => return Err(Refusal::too_new_to_see(&scope)),
            None => return Ok(Answer::Bool(false)),
            Some(found) => check_is_owned(&tables, &scope, &found, attempt, "idem_release")?,
        }
    }
}

/// The scope of a claim that must have been made: a key that cannot be claimed is not found.
pub fn read_claimed_scope(args: &Args) -> Result<Scope, Refusal> {
    let (tenant, endpoint) = read_names(args)?;
    tenancy::check(&tenant)?;
    match scope::check_key(args.text(arg::KEY, "key")?) {
        Ok(key) => Ok(Scope { tenant, endpoint, key }),
        Err(_) => Err(Refusal::unclaimable_key(&endpoint)),
    }
}

/// Refuses unless the row that stood in the way is, by now, this attempt's open claim: then it was released and claimed
/// again between the two statements, and the call is repeated.
pub fn check_is_owned(
    tables: &Tables,
    scope: &Scope,
    (status, stored): &(String, i32),
    attempt: i32,
    function: &str,
) -> Result<(), Refusal> {
    check_is_latest(tables, scope, status, *stored)?;
    if *stored != attempt {
        return Err(Refusal::stale_attempt(scope, status, *stored, attempt));
    }
    if status != "in_progress" {
        return Err(Refusal::already_finished(scope, status, function));
    }
    Ok(())
}

/// Where the snapshot is fixed, what it shows may be long past: an answer is given on what is stored now, or not at all.
fn check_is_latest(tables: &Tables, scope: &Scope, status: &str, attempt: i32) -> Result<(), Refusal> {
    let is_past = transaction::snapshot_is_fixed()
        && tables.state(scope, Mode::ReadLatest).is_none_or(|(s, a)| s != status || a != attempt);
    if is_past {
        return Err(Refusal::too_new_to_see(scope));
    }
    Ok(())
}

/// Why there is no row to finish: none at all, or one that is too new to see.
pub fn missing(tables: &Tables, scope: &Scope) -> Refusal {
    if is_too_new_to_see(tables, scope) {
        Refusal::too_new_to_see(scope)
    } else {
        Refusal::not_found(scope)
    }
}

/// Whether the row is there for others, but younger than this transaction's snapshot.
fn is_too_new_to_see(tables: &Tables, scope: &Scope) -> bool {
    transaction::snapshot_is_fixed() && tables.state(scope, Mode::ReadLatest).is_some()
}
