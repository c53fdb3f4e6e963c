//! `idem_claim`: decides whether the work is run, and if not, what is answered.

use crate::fingerprint::{self, Fingerprint};
use crate::gate::Gate;
use crate::guard::{self, Claim};
use crate::limits::{LEAST_TTL, LONGEST_TTL, LONGEST_WAIT, REQUEST_TARGET_BYTES};
use crate::patience::Patience;
use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::memory::Scratch;
use crate::pg::row::OutRow;
use crate::pg::spi::Mode;
use crate::pg::transaction;
use crate::pg::value::Value;
use crate::problem::Problem;
use crate::refusal::Refusal;
use crate::scope::{KeyFault, Scope};
use crate::stats::{self, Counter};
use crate::tables::{Claimed, Endpoint, NewClaim, Response, Seen, Tables, Version};
use crate::verdict::Verdict;
use crate::{settings, subject, template, tenancy};
use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::pg_sys::{self, BuiltinOid};
use std::cell::Cell;
use std::time::Duration;

sql_function!("idem_claim_bytea" => claim_bytea);
sql_function!("idem_claim_text" => claim_text);

/// Positions of the arguments in `sql/functions.sql`; tenant, endpoint and key come before them.
mod arg {
    pub const REQUEST_BODY: usize = 3;
    pub const REQUEST_TARGET: usize = 4;
    pub const REQUEST_HASH: usize = 5;
    pub const WAIT: usize = 6;
    pub const TTL: usize = 7;
}

const OUT: OutRow<8> = OutRow {
    columns: [
        (c"outcome", BuiltinOid::TEXTOID),
        (c"response_code", BuiltinOid::INT4OID),
        (c"response_headers", BuiltinOid::JSONBOID),
        (c"response_body", BuiltinOid::BYTEAOID),
        (c"resource_ref", BuiltinOid::TEXTOID),
        (c"attempt", BuiltinOid::INT4OID),
        (c"provider_key", BuiltinOid::UUIDOID),
        (c"expires_at", BuiltinOid::TIMESTAMPTZOID),
    ],
};

thread_local! {
    static OUT_TYPE: Cell<pg_sys::TupleDesc> = const { Cell::new(std::ptr::null_mut()) };
}

/// A claim that loses to others this often in a row is in progress elsewhere.
const MOST_LOST_RACES: u32 = 3;

struct Request {
    tenant: String,
    endpoint: String,
    key: Result<String, KeyFault>,
    fingerprint: Fingerprint,
    wait: Duration,
    ttl: Option<Interval>,
}

enum Arrival {
    Execute { attempt: i32, provider_key: Option<[u8; 16]>, expires_at: TimestampWithTimeZone },
    Replay(Response),
    Problem(Problem),
    Unprotected,
}

fn claim_bytea(args: &Args) -> Result<Answer, Refusal> {
    claim(args, args.bytes(arg::REQUEST_BODY))
}

fn claim_text(args: &Args) -> Result<Answer, Refusal> {
    claim(args, args.utf8_bytes(arg::REQUEST_BODY, "request_body")?)
}

fn claim(args: &Args, body: Option<&[u8]>) -> Result<Answer, Refusal> {
    let request = Request::read(args, body)?;
    tenancy::check(&request.tenant)?;
    let tables = Tables::open(args.schema())?;
    let endpoint = request.endpoint.clone();
    let arrival = arrive(&tables, request)?;
    stats::count(&endpoint, arrival.counter(), || tables.is_registered(&endpoint));
    drop(tables);
    Ok(Answer::Row(arrival.form()))
}

impl Request {
    fn read(args: &Args, body: Option<&[u8]>) -> Result<Self, Refusal> {
        let (tenant, endpoint) = subject::read_names(args)?;
        let key = subject::read_key(args);
        let rules = || {
            let hash = read_hash(args, body)?;
            let target = read_target(args, &endpoint)?;
            Ok((fingerprint::of_request(hash, target.as_deref()), read_wait(args)?, read_ttl(args)?))
        };
        let (fingerprint, wait, ttl) =
            rules().map_err(|refusal: Refusal| refusal.naming(&endpoint, key.as_deref().ok()))?;
        Ok(Request { tenant, endpoint, key, fingerprint, wait, ttl })
    }
}

/// The hash of the body, or what stands in for it.
fn read_hash(args: &Args, body: Option<&[u8]>) -> Result<Fingerprint, Refusal> {
    match (body, args.size(arg::REQUEST_HASH)) {
        (Some(body), None) => Ok(fingerprint::of_body(body)),
        (None, Some(size)) => {
            let hash = if size == 32 { args.bytes(arg::REQUEST_HASH) } else { None };
            hash.and_then(|hash| hash.try_into().ok()).ok_or_else(|| {
                Refusal::invalid(
                    "request_hash must have 32 bytes",
                    format!("It has {size}."),
                    "Pass the SHA-256 of the request body as bytes, not as hexadecimal digits.",
                )
            })
        }
        (Some(_), Some(_)) => Err(Refusal::invalid(
            "request_body and request_hash must not both be given",
            "The hash stands in for a body that the caller has hashed itself.",
            "Pass request_body => NULL together with request_hash.",
        )),
        (None, None) => Err(Refusal::invalid(
            "request_body must not be null unless request_hash is given",
            "Without a fingerprint, a reused key cannot be told from a retry.",
            "Pass '' for a request without a body.",
        )),
    }
}

/// What tells two requests apart whose bodies are the same. An endpoint that is a template requires it.
fn read_target(args: &Args, endpoint: &str) -> Result<Option<String>, Refusal> {
    let target = args.text(arg::REQUEST_TARGET, REQUEST_TARGET_BYTES).map_err(|bad| bad.of("request_target"))?;
    if target.is_none() && template::is_template(endpoint) {
        return Err(Refusal::invalid(
            "request_target must not be null where the endpoint is a template",
            "The same key on two targets, with the same body, would get the first one's answer.",
            "Pass the request's path and query, for example '/orders/1/refund'; '' where the body holds everything.",
        ));
    }
    Ok(target)
}

fn read_wait(args: &Args) -> Result<Duration, Refusal> {
    let Some(wait) = args.interval(arg::WAIT) else { return Ok(Duration::ZERO) };
    bounded(wait, Duration::ZERO, LONGEST_WAIT).ok_or_else(|| {
        Refusal::invalid(
            "wait must be between zero and one hour",
            "A negative wait has no meaning, and an endless one would hold the connection.",
            "Pass how long the client may be kept waiting, for example '5 s'; '0' answers at once.",
        )
    })
}

fn read_ttl(args: &Args) -> Result<Option<Interval>, Refusal> {
    let ttl = args.interval(arg::TTL);
    if ttl.is_some_and(|ttl| bounded(ttl, LEAST_TTL, LONGEST_TTL).is_none()) {
        return Err(Refusal::invalid(
            "ttl must be between 24 hours and 100 years",
            "A result that is forgotten while its client still retries is executed again.",
            "Leave ttl out to use the endpoint's, or pass one above its retry window.",
        ));
    }
    Ok(ttl)
}

/// The interval as a duration when it is within the bounds; a month counts 30 days, as in comparisons.
fn bounded(interval: Interval, least: Duration, most: Duration) -> Option<Duration> {
    let micros = u64::try_from(interval.as_micros()).ok()?;
    Some(Duration::from_micros(micros)).filter(|d| (least..=most).contains(d))
}

fn arrive(tables: &Tables, request: Request) -> Result<Arrival, Refusal> {
    let Request { tenant, endpoint, key, fingerprint, wait, ttl } = request;
    let scope = match key {
        Ok(key) => Scope { tenant, endpoint, key },
        Err(KeyFault::Missing) => {
            // An endpoint that is not registered requires a key.
            let required = tables.endpoint(&endpoint).is_none_or(|e| e.key_required);
            return Ok(if required { Arrival::Problem(Problem::KeyMissing) } else { Arrival::Unprotected });
        }
        Err(fault) => return Ok(Arrival::Problem(Problem::KeyInvalid(fault))),
    };
    if ttl.is_some() {
        // One that cannot be right is refused whatever the outcome.
        Rules::of(tables.endpoint(&scope.endpoint), ttl, &scope)?;
    }
    let key = Key { tables, scope: &scope, fingerprint: &fingerprint };
    let patience = Patience::new(wait);
    let scratch = Scratch::new();
    let mut lost_races = 0;
    loop {
        let seen = scratch.run(|| key.look(Mode::Read));
        match seen {
            Seen { verdict: Verdict::Replay, response: Some(response), version } => {
                key.confirm(version)?;
                return Ok(Arrival::Replay(response));
            }
            Seen { verdict: Verdict::KeyReused, version, .. } => {
                key.confirm(version)?;
                return Ok(Arrival::Problem(Problem::KeyReused));
            }
            Seen { verdict: Verdict::First | Verdict::TakeOver, .. } => {
                tables.for_writing(&scope)?;
                if let Some(gate) = Gate::try_enter(&scope) {
                    // Inserting would wait for whoever is deleting a row that this snapshot does not show.
                    key.confirm(seen.version)?;
                    let rules = Rules::of(key.registration()?, ttl, &scope)?;
                    if let Some(execute) = key.take(&rules, &seen)? {
                        gate.keep();
                        return Ok(execute);
                    }
                    drop(gate);
                    lost_races += 1;
                    if lost_races < MOST_LOST_RACES {
                        continue; // the row has changed since it was read: look again
                    }
                    if tables.has_triggers() {
                        return Err(Refusal::change_swallowed(&scope));
                    }
                }
            }
            _ => {}
        }
        // Somebody is at it: another transaction, a committed open claim, or this very transaction.
        scratch.run(|| key.confirm(seen.version))?;
        if patience.is_over() || guard::own(&scope).is_some_and(|claim| claim.is_open) {
            return Ok(Arrival::Problem(Problem::InProgress));
        }
        patience.pause();
        lost_races = 0;
    }
}

/// The key that a request arrives with.
struct Key<'a> {
    tables: &'a Tables,
    scope: &'a Scope,
    fingerprint: &'a Fingerprint,
}

impl Key<'_> {
    fn look(&self, mode: Mode) -> Seen {
        self.tables.look_up(self.scope, self.fingerprint, mode)
    }

    /// Where the snapshot is fixed, what it shows may be long past: an outcome is given on what is stored now, or not at
    /// all (`40001`).
    fn confirm(&self, version: Option<Version>) -> Result<(), Refusal> {
        if transaction::snapshot_is_fixed() && self.look(Mode::ReadLatest).version != version {
            return Err(Refusal::too_new_to_see(self.scope));
        }
        Ok(())
    }

    /// What the endpoint is registered as, which it must be (`ID006`) unless the administrator lets others through.
    fn registration(&self) -> Result<Option<Endpoint>, Refusal> {
        let registered = self.tables.endpoint(&self.scope.endpoint);
        if registered.is_none() && settings::require_registration() {
            return Err(Refusal::not_registered(self.scope, &self.tables.call_to_register(&self.scope.endpoint)));
        }
        Ok(registered)
    }

    /// Inserts the claim, or puts it in the place of what it supersedes; `None` when somebody else was faster.
    fn take(&self, rules: &Rules, seen: &Seen) -> Result<Option<Arrival>, Refusal> {
        let scope = self.scope;
        let claim = NewClaim {
            scope,
            fingerprint: self.fingerprint,
            provider_key: rules.external.then(|| fingerprint::provider_key(scope, self.fingerprint)),
            may_stay_open: !rules.guarded,
            ttl: rules.ttl,
        };
        let claimed = match seen.verdict {
            Verdict::First => self.tables.insert(&claim),
            _ => self.tables.take_over(&claim),
        };
        let Some(Claimed { attempt, expires_at }) = claimed else { return Ok(None) };
        if claim.may_stay_open {
            transaction::force_durable_commit();
        }
        let own = Claim {
            attempt,
            guarded: rules.guarded,
            over_tombstone: attempt > 1,
            home: self.tables.schema().to_u32(),
            is_open: true,
        };
        guard::opened(scope, own)?;
        Ok(Some(Arrival::Execute { attempt, provider_key: claim.provider_key, expires_at }))
    }
}

/// What holds for a new claim of an endpoint.
#[derive(Clone, Copy)]
struct Rules {
    external: bool,
    /// The commit guard holds: registered, and not external.
    guarded: bool,
    ttl: Interval,
}

impl Rules {
    /// The call's ttl, else the endpoint's, else 24 hours; `22023` when the call's does not outlast the retry window.
    fn of(endpoint: Option<Endpoint>, ttl: Option<Interval>, scope: &Scope) -> Result<Rules, Refusal> {
        let (external, guarded, own_ttl, window) = match endpoint {
            Some(e) => (e.external, !e.external, e.ttl, e.retry_window.as_micros()),
            None => (false, false, Interval::from_hours(24), 0),
        };
        match ttl {
            Some(ttl) if ttl.as_micros() <= window => Err(Refusal::invalid(
                "ttl must be above the endpoint's retry window",
                "A result that is forgotten while its client still retries is executed again.",
                "Leave ttl out to use the endpoint's, or pass a longer one.",
            )
            .naming(&scope.endpoint, Some(&scope.key))),
            given => Ok(Rules { external, guarded, ttl: in_elapsed_time(given.unwrap_or(own_ttl)) }),
        }
    }
}

/// The interval with its months and days as the 30 days and 24 hours that comparisons take them for: what was found
/// to be above the retry window must not turn out shorter in February, across a clock change, or with mixed signs.
fn in_elapsed_time(interval: Interval) -> Interval {
    Interval::from_micros(i64::try_from(interval.as_micros()).unwrap_or(i64::MAX))
}

impl Arrival {
    fn counter(&self) -> Counter {
        match self {
            Arrival::Execute { .. } => Counter::Executed,
            Arrival::Replay(_) => Counter::Replayed,
            Arrival::Problem(Problem::InProgress) => Counter::InProgress,
            Arrival::Problem(Problem::KeyReused) => Counter::KeyReused,
            Arrival::Problem(Problem::KeyMissing | Problem::KeyInvalid(_)) => Counter::KeyRejected,
            Arrival::Unprotected => Counter::Unprotected,
        }
    }

    fn form(self) -> pg_sys::Datum {
        const NULL: Value = Value::NULL;
        let row = match self {
            Arrival::Execute { attempt, provider_key, expires_at } => [
                Value::text("execute"),
                NULL,
                NULL,
                NULL,
                NULL,
                Value::int(attempt),
                Value::optional(provider_key, Value::uuid),
                Value::timestamptz(expires_at),
            ],
            Arrival::Replay(stored) => [
                Value::text("replay"),
                Value::optional(stored.code, Value::int),
                stored.headers,
                stored.body,
                stored.resource_ref,
                Value::optional(stored.attempt, Value::int),
                Value::optional(stored.provider_key, Value::uuid),
                Value::optional(stored.expires_at, Value::timestamptz),
            ],
            Arrival::Problem(problem) => [
                Value::text(problem.outcome()),
                Value::int(problem.status()),
                Value::jsonb(&problem.headers(settings::retry_after())),
                Value::payload(&problem.body(settings::docs_url().as_deref())),
                NULL,
                NULL,
                NULL,
                NULL,
            ],
            Arrival::Unprotected => [Value::text("unprotected"), NULL, NULL, NULL, NULL, NULL, NULL, NULL],
        };
        OUT.form(&OUT_TYPE, row)
    }
}
