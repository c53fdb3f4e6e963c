//! `idem_protect` and `idem_unprotect`: which endpoints are protected, and how.

use crate::limits::{LEAST_TTL, LONGEST_RETRY_WINDOW, LONGEST_TTL, LONG_TTL, NAME_BYTES, NOTES_BYTES};
use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::tell;
use crate::pg::value::{self, Value};
use crate::refusal::Refusal;
use crate::stats::OTHER_ENDPOINTS;
use crate::tables::{Table, Tables};
use crate::{audit, scope};
use pgrx::datum::Interval;

sql_function!("idem_protect" => protect);
sql_function!("idem_unprotect" => unprotect);

/// Positions of the arguments in `sql/registry.sql`.
mod arg {
    pub const ENDPOINT: usize = 0;
    pub const EFFECT: usize = 1;
    pub const RETRY_WINDOW: usize = 2;
    pub const TTL: usize = 3;
    pub const STUCK_AFTER: usize = 4;
    pub const KEY_REQUIRED: usize = 5;
    pub const MAX_BODY_BYTES: usize = 6;
    pub const EXPECTED_WRITES: usize = 7;
    pub const GUESSES: usize = 8;
    pub const NOTES: usize = 9;
    pub const FORCE: usize = 1;
}

/// The inputs of a design that may be guesses.
const GUESSABLE: [&str; 7] =
    ["effect", "key_required", "retry_window", "ttl", "stuck_after", "max_body_bytes", "expected_writes_per_day"];
/// Methods that ask for no change, and methods that ask for the same state again (RFC 9110, section 9.2).
const SAFE: [&str; 4] = ["GET", "HEAD", "OPTIONS", "TRACE"];
const IDEMPOTENT: [&str; 2] = ["PUT", "DELETE"];

/// What an endpoint is to be registered as.
struct Registration {
    endpoint: String,
    effect: String,
    retry_window: Interval,
    ttl: Interval,
    stuck_after: Interval,
}

/// Raises `22023`; warns of a long ttl and of methods that are idempotent by definition.
fn protect(args: &Args) -> Result<Answer, Refusal> {
    let registration = Registration::read(args)?;
    registration.warn();
    let Registration { endpoint, effect, retry_window, ttl, stuck_after } = registration;
    let values = [
        Value::text(&endpoint),
        Value::text(&effect),
        Value::bool(args.bool(arg::KEY_REQUIRED).unwrap_or(true)),
        Value::interval(retry_window),
        Value::interval(ttl),
        Value::interval(stuck_after),
        Value::optional(args.int(arg::MAX_BODY_BYTES), Value::int),
        Value::optional(args.bigint(arg::EXPECTED_WRITES), Value::bigint),
        args.texts(arg::GUESSES).map_or(Value::texts(&[]), |_| args.copied(arg::GUESSES)),
        args.unchanged(arg::NOTES),
    ];
    let tables = Tables::open(args.schema())?;
    tables.lock_for_writing(Table::Endpoints)?;
    let before = tables.register(&values).ok_or_else(|| Refusal::registration_swallowed(&endpoint))?;
    drop(tables);
    if let Some(before) = before.filter(|before| *before != effect) {
        tell::notice(format!("endpoint {endpoint:?} changes from {before} to {effect}"));
    }
    audit::log(&format!("registered endpoint {endpoint:?} as {effect:?} with a ttl of {}", value::interval_text(ttl)));
    Ok(Answer::Void)
}

impl Registration {
    fn read(args: &Args) -> Result<Registration, Refusal> {
        let endpoint = args.text(arg::ENDPOINT, NAME_BYTES).map_err(|bad| bad.of("endpoint"))?;
        let endpoint = scope::check_endpoint(endpoint)?;
        let refuse = |message: String, detail: String, hint: &str| Refusal::invalid(message, detail, hint);
        if endpoint == OTHER_ENDPOINTS {
            return Err(refuse(
                format!("endpoint {endpoint:?} is a reserved name"),
                "Under it the endpoints are counted that have no counters of their own.".into(),
                "Name the operation, by convention METHOD /route/template.",
            ));
        }
        let method = method_of(&endpoint);
        if SAFE.contains(&method.as_str()) {
            return Err(refuse(
                format!("endpoint {endpoint:?} has nothing to protect"),
                format!("{method} is a safe method (RFC 9110): it asks for no change."),
                "Register the endpoints whose effect must not happen twice.",
            ));
        }
        let effect = args.text(arg::EFFECT, NAME_BYTES).map_err(|bad| bad.of("effect"))?;
        let effect = effect.unwrap_or_else(|| "transaction".into());
        if effect != "transaction" && effect != "external" {
            return Err(refuse(
                format!("effect of endpoint {endpoint:?} must be 'transaction' or 'external'"),
                format!("It is {effect:?}."),
                "transaction: all of the effect is in the claim's own transaction. external: some of it is not.",
            ));
        }
        let retry_window = args.interval(arg::RETRY_WINDOW).unwrap_or_else(|| Interval::from_hours(24));
        let window = retry_window.as_micros();
        if window <= 0 || window > LONGEST_RETRY_WINDOW.as_micros() as i128 {
            return Err(refuse(
                format!("retry_window of endpoint {endpoint:?} must be above zero and at most 50 years"),
                format!("It is {}.", value::interval_text(retry_window)),
                "Pass how long a client, a queue or an operator may still retry.",
            ));
        }
        let ttl = args.interval(arg::TTL).unwrap_or_else(|| match 2 * window >= LEAST_TTL.as_micros() as i128 {
            true => value::interval_times_two(retry_window),
            false => Interval::from_hours(24),
        });
        check_ttl(&endpoint, retry_window, ttl)?;
        let stuck_after = args.interval(arg::STUCK_AFTER).unwrap_or_else(|| Interval::from_seconds(60.0));
        if stuck_after.as_micros() <= 0 || stuck_after.as_micros() > LONGEST_TTL.as_micros() as i128 {
            return Err(refuse(
                format!("stuck_after of endpoint {endpoint:?} must be above zero and at most 100 years"),
                format!("It is {}.", value::interval_text(stuck_after)),
                "Pass the time of the slowest legitimate operation.",
            ));
        }
        let (body, writes) = (args.int(arg::MAX_BODY_BYTES), args.bigint(arg::EXPECTED_WRITES));
        if body.is_some_and(|n| n < 0) || writes.is_some_and(|n| n < 0) {
            let shown = |n: Option<i64>| n.map_or("null".to_owned(), |n| n.to_string());
            return Err(refuse(
                format!("max_body_bytes and expected_writes_per_day of endpoint {endpoint:?} must not be negative"),
                format!("They are {} and {}.", shown(body.map(i64::from)), shown(writes)),
                "Leave out what is not known.",
            ));
        }
        check_guesses(args, &endpoint)?;
        match args.size(arg::NOTES) {
            Some(size) if size > NOTES_BYTES => return Err(Refusal::too_long("notes", size, NOTES_BYTES)),
            _ => {}
        }
        Ok(Registration { endpoint, effect, retry_window, ttl, stuck_after })
    }

    fn warn(&self) {
        let Registration { endpoint, ttl, .. } = self;
        let method = method_of(endpoint);
        if IDEMPOTENT.contains(&method.as_str()) {
            tell::warning(
                format!("endpoint {endpoint:?} is idempotent by definition"),
                format!("Repeating a {method} asks for the same state again (RFC 9110)."),
                "Protect it only if its handler does more than that, or its response must be the first one.".into(),
            );
        }
        if ttl.as_micros() > LONG_TTL.as_micros() as i128 {
            tell::warning(
                format!("ttl of endpoint {endpoint:?} is over 7 days"),
                format!("It is {}: every result is stored that long.", value::interval_text(*ttl)),
                "Make sure that the table may grow to that many rows, or shorten the retry window.".into(),
            );
        }
    }
}

/// The first word, which by convention is a method.
fn method_of(endpoint: &str) -> String {
    endpoint.split_whitespace().next().unwrap_or_default().to_uppercase()
}

/// The red line: a result must not be forgotten while its client still retries.
fn check_ttl(endpoint: &str, retry_window: Interval, ttl: Interval) -> Result<(), Refusal> {
    if ttl.as_micros() <= retry_window.as_micros() {
        return Err(Refusal::invalid(
            format!("ttl of endpoint {endpoint:?} must be above its retry window"),
            format!(
                "The ttl is {}, the retry window {}.",
                value::interval_text(ttl),
                value::interval_text(retry_window)
            ),
            "A result that is forgotten while its client still retries is executed again. Leave ttl out for twice the \
             retry window.",
        ));
    }
    if !(LEAST_TTL.as_micros() as i128..=LONGEST_TTL.as_micros() as i128).contains(&ttl.as_micros()) {
        return Err(Refusal::invalid(
            format!("ttl of endpoint {endpoint:?} must be between 24 hours and 100 years"),
            format!("It is {}.", value::interval_text(ttl)),
            "Leave ttl out for twice the retry window, at least 24 hours.",
        ));
    }
    Ok(())
}

fn check_guesses(args: &Args, endpoint: &str) -> Result<(), Refusal> {
    let most = GUESSABLE.len() * 64;
    match args.size(arg::GUESSES) {
        Some(size) if size > most => return Err(Refusal::too_long("guesses", size, most)),
        _ => {}
    }
    let guesses = args.texts(arg::GUESSES).unwrap_or_default();
    let unknown = |guess: &&Option<String>| !guess.as_deref().is_some_and(|name| GUESSABLE.contains(&name));
    match guesses.iter().find(unknown) {
        None => Ok(()),
        Some(unknown) => Err(Refusal::invalid(
            format!("guesses of endpoint {endpoint:?} names something that is not an input"),
            format!("It has {}.", unknown.as_ref().map_or("NULL".to_owned(), |name| format!("{name:?}"))),
            format!("Inputs are {}.", GUESSABLE.join(", ")),
        )),
    }
}

/// Raises `55006` while keys of the endpoint are alive, unless forced.
fn unprotect(args: &Args) -> Result<Answer, Refusal> {
    let endpoint = args.text(arg::ENDPOINT, NAME_BYTES).map_err(|bad| bad.of("endpoint"))?;
    let Some(endpoint) = endpoint else { return Ok(Answer::Bool(false)) };
    let tables = Tables::open(args.schema())?;
    tables.lock_for_writing(Table::Endpoints)?;
    if args.bool(arg::FORCE) != Some(true) {
        let alive = tables.count_alive(&endpoint);
        if alive > 0 {
            return Err(Refusal::endpoint_in_use(&endpoint, alive));
        }
    }
    let removed = tables.unregister(&endpoint);
    if !removed && tables.is_registered(&endpoint) {
        return Err(Refusal::registration_swallowed(&endpoint));
    }
    drop(tables);
    if removed {
        audit::log(&format!("removed the registration of endpoint {endpoint:?}"));
    }
    Ok(Answer::Bool(removed))
}
