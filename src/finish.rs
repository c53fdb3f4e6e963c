//! `idem_complete` and `idem_fail`: a claim's result.

use crate::headers::{self, Headers};
use crate::limits::{HEADERS_BYTES, JSONB_GROWTH, RESOURCE_REF_BYTES};
use crate::ownership::{self, MOST_REPETITIONS};
use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::value::Value;
use crate::refusal::Refusal;
use crate::stats::{self, Counter};
use crate::status::Status;
use crate::tables::{Outcome, Tables};
use crate::{guard, settings, subject};

sql_function!("idem_complete_bytea" => complete_bytea);
sql_function!("idem_complete_text" => complete_text);
sql_function!("idem_fail_bytea" => fail_bytea);
sql_function!("idem_fail_text" => fail_text);

/// Positions of the arguments in `sql/functions.sql`; tenant, endpoint and key come before them.
mod arg {
    pub const RESPONSE_CODE: usize = 3;
    pub const RESPONSE_BODY: usize = 4;
    pub const RESPONSE_HEADERS: usize = 5;
    pub const RESOURCE_REF: usize = 6;
    pub const ATTEMPT: usize = 7;
}

fn complete_bytea(args: &Args) -> Result<Answer, Refusal> {
    finish(args, Status::Succeeded, Body::Bytes)
}

fn complete_text(args: &Args) -> Result<Answer, Refusal> {
    finish(args, Status::Succeeded, Body::Text)
}

fn fail_bytea(args: &Args) -> Result<Answer, Refusal> {
    finish(args, Status::Failed, Body::Bytes)
}

fn fail_text(args: &Args) -> Result<Answer, Refusal> {
    finish(args, Status::Failed, Body::Text)
}

/// The type of the argument `response_body`.
#[derive(Clone, Copy, PartialEq)]
enum Body {
    Bytes,
    Text,
}

fn finish(args: &Args, status: Status, body: Body) -> Result<Answer, Refusal> {
    let scope = subject::read_scope_of_claim(args)?;
    let result = Response::read(args, body).map_err(|refusal| refusal.naming(&scope.endpoint, Some(&scope.key)))?;
    let outcome = Outcome {
        scope: &scope,
        status,
        attempt: guard::attempt_meant(&scope, args.int(arg::ATTEMPT)),
        response_code: result.code,
        response_headers: result.headers,
        response_body: result.body,
        resource_ref: args.unchanged(arg::RESOURCE_REF),
        max_body_bytes: settings::max_body_bytes(),
    };
    let tables = Tables::open_for_writing(args.schema(), &scope)?;
    for _ in 0..MOST_REPETITIONS {
        if tables.finish(&outcome) {
            guard::closed(&scope)?;
            let counter = if status == Status::Succeeded { Counter::Completed } else { Counter::Failed };
            stats::count(&scope.endpoint, counter, || tables.is_registered(&scope.endpoint));
            return Ok(Answer::Bool(true));
        }
        let Some(found) = tables.obstacle(&outcome) else { return Err(ownership::missing(&tables, &scope)) };
        if found.same_result && found.state.attempt == outcome.attempt {
            return ownership::check_is_latest(&tables, &scope, Some(found.state)).map(|()| Answer::Bool(false));
        }
        let function = if status == Status::Succeeded { "this idem_complete" } else { "this idem_fail" };
        ownership::check(&tables, &scope, found.state, outcome.attempt, function)?;
        if let Some(limit) = found.over_limit {
            return Err(Refusal::response_too_large(&scope, args.size(arg::RESPONSE_BODY).unwrap_or(0), limit));
        }
    }
    Err(Refusal::change_swallowed(&scope))
}

/// The response as it will be stored.
struct Response {
    code: i32,
    headers: Value,
    body: Value,
}

impl Response {
    fn read(args: &Args, body: Body) -> Result<Response, Refusal> {
        let code = args.int(arg::RESPONSE_CODE).filter(|code| (100..=599).contains(code)).ok_or_else(|| {
            Refusal::invalid(
                "response_code must be between 100 and 599",
                args.int(arg::RESPONSE_CODE).map_or("It is null.".into(), |code| format!("It is {code}.")),
                "Pass the HTTP status that the client is sent, for example 201.",
            )
        })?;
        match args.size(arg::RESOURCE_REF) {
            Some(size) if size > RESOURCE_REF_BYTES => {
                return Err(Refusal::too_long("resource_ref", size, RESOURCE_REF_BYTES))
            }
            _ => {}
        }
        Ok(Response { code, headers: read_headers(args)?, body: read_body(args, body)? })
    }
}

/// The headers' text is what is limited; what cannot be that short is not made into text.
fn read_headers(args: &Args) -> Result<Value, Refusal> {
    let Some(stored) = args.size(arg::RESPONSE_HEADERS) else { return Ok(Value::NULL) };
    if stored > HEADERS_BYTES * JSONB_GROWTH {
        return Err(Refusal::too_long("response_headers", stored, HEADERS_BYTES));
    }
    let text = args.jsonb_text(arg::RESPONSE_HEADERS, HEADERS_BYTES).map_err(|bad| bad.of("response_headers"))?;
    Ok(match headers::check(&text.unwrap_or_default())? {
        Headers::None => Value::NULL,
        Headers::AsGiven => args.unchanged(arg::RESPONSE_HEADERS),
        Headers::Pairs(pairs) => Value::jsonb(&pairs),
    })
}

/// Text is stored as its UTF-8 bytes. Text that is nothing but `\x` and hexadecimal digits is what bytes look like when they
/// were cast to text, by the caller or by a driver: replayed, the client would be sent those digits.
fn read_body(args: &Args, body: Body) -> Result<Value, Refusal> {
    if body == Body::Bytes {
        return Ok(args.unchanged(arg::RESPONSE_BODY));
    }
    let Some(text) = args.utf8_bytes(arg::RESPONSE_BODY, "response_body")? else { return Ok(Value::NULL) };
    if text.strip_prefix(b"\\x").is_some_and(|hex| hex.len() % 2 == 0 && hex.iter().all(u8::is_ascii_hexdigit)) {
        return Err(Refusal::invalid(
            "response_body is text that looks like bytes: \\x and hexadecimal digits",
            "Bytes that are cast to text become that; as text they would be sent to the client as they are.",
            "Pass bytes without casting them to text ($5::bytea); so also where this very text is meant.",
        ));
    }
    // Text and bytea are stored alike: a length and the bytes.
    Ok(if args.is_utf8_in_place(arg::RESPONSE_BODY) {
        args.unchanged(arg::RESPONSE_BODY)
    } else {
        Value::payload(text)
    })
}
