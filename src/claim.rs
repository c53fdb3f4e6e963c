//! `idem_claim`: decides whether the work is run, and if not, what is answered.

use crate::fingerprint::{self, RequestHash};
use crate::gate::Gate;
use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::row::OutRow;
use crate::pg::spi::Mode;
use crate::pg::value::Value;
use crate::pg::{encoding, transaction};
use crate::problem::Problem;
use crate::refusal::Refusal;
use crate::scope::{self, KeyFault, Scope};
use crate::stats::{self, Counter};
use crate::tables::{Endpoint, NewClaim, Response, Seen, Tables};
use crate::verdict::Verdict;
use crate::{guard, settings, tenancy};
use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::pg_sys::{self, BuiltinOid};
use std::cell::Cell;
use std::time::{Duration, Instant};

sql_function!("idem_claim_bytea" => claim_bytea);
sql_function!("idem_claim_text" => claim_text);

/// Positions of the arguments in `sql/functions.sql`.
mod arg {
    pub const TENANT_ID: usize = 0;
    pub const ENDPOINT: usize = 1;
    pub const KEY: usize = 2;
    pub const REQUEST_BODY: usize = 3;
    pub const REQUEST_HASH: usize = 4;
    pub const WAIT: usize = 5;
    pub const TTL: usize = 6;
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

/// Retention of an endpoint that is not registered, and the least that a ttl may be.
const LEAST_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// A longer wait or retention is taken for a mistake, as is an infinite one.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);
const LONGEST_TTL: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// A claim that loses to others this often in a row is in progress elsewhere.
const MOST_LOST_RACES: u32 = 3;

struct Request {
    tenant: String,
    endpoint: String,
    key: Result<String, KeyFault>,
    hash: RequestHash,
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
    claim(args, args.bytes(arg::REQUEST_BODY).map(fingerprint::of_body))
}

fn claim_text(args: &Args) -> Result<Answer, Refusal> {
    claim(args, args.text_bytes(arg::REQUEST_BODY).map(|body| fingerprint::of_body(&body)))
}

fn claim(args: &Args, body_hash: Option<RequestHash>) -> Result<Answer, Refusal> {
    let request = Request::read(args, body_hash)?;
    tenancy::check(&request.tenant)?;
    let tables = Tables::open(args.schema())?;
    let endpoint = request.endpoint.clone();
    let arrival = arrive(&tables, request)?;
    stats::count(&endpoint, arrival.counter(), || tables.is_registered(&endpoint));
    drop(tables);
    Ok(Answer::Row(arrival.form()))
}

impl Request {
    fn read(args: &Args, body_hash: Option<RequestHash>) -> Result<Self, Refusal> {
        let (tenant, endpoint) = read_names(args)?;
        let key = scope::check_key(args.text(arg::KEY, "key")?);
        let (hash, wait, ttl) = read_rules(args, body_hash).map_err(|r| r.naming(&endpoint, key.as_deref().ok()))?;
        Ok(Request { tenant, endpoint, key, hash, wait, ttl })
    }
}

/// What the caller says of the request beside its scope: `22023` for what cannot be right.
fn read_rules(
    args: &Args,
    body_hash: Option<RequestHash>,
) -> Result<(RequestHash, Duration, Option<Interval>), Refusal> {
    let hash = match (body_hash, args.bytes(arg::REQUEST_HASH)) {
        (Some(hash), None) => hash,
        (None, Some(hash)) => hash.try_into().map_err(|_| {
            Refusal::invalid(
                "request_hash must have 32 bytes",
                format!("It has {}.", hash.len()),
                "Pass the SHA-256 of the request body as bytes, not as hexadecimal digits.",
            )
        })?,
        (Some(_), Some(_)) => {
            return Err(Refusal::invalid(
                "request_body and request_hash must not both be given",
                "The hash stands in for a body that the caller has hashed itself.",
                "Pass request_body => NULL together with request_hash.",
            ))
        }
        (None, None) => {
            return Err(Refusal::invalid(
                "request_body must not be null unless request_hash is given",
                "Without a fingerprint, a reused key cannot be told from a retry.",
                "Pass '' for a request without a body.",
            ))
        }
    };
    let wait = match args.interval(arg::WAIT) {
        None => Duration::ZERO,
        Some(wait) => bounded(wait, Duration::ZERO, LONGEST_WAIT).ok_or_else(|| {
            Refusal::invalid(
                "wait must be between zero and one hour",
                "A negative wait has no meaning, and an endless one would hold the connection.",
                "Pass how long the client may be kept waiting, for example '5 s'; '0' answers at once.",
            )
        })?,
    };
    let ttl = args.interval(arg::TTL);
    if ttl.is_some_and(|ttl| bounded(ttl, LEAST_TTL, LONGEST_TTL).is_none()) {
        return Err(Refusal::invalid(
            "ttl must be between 24 hours and 100 years",
            "A result that is forgotten while its client still retries is executed again.",
            "Leave ttl out to use the endpoint's, or pass one above its retry window.",
        ));
    }
    Ok((hash, wait, ttl))
}

/// Tenant and endpoint, the first two arguments of every application function.
pub fn read_names(args: &Args) -> Result<(String, String), Refusal> {
    scope::check_names(args.text(arg::TENANT_ID, "tenant_id")?, args.text(arg::ENDPOINT, "endpoint")?, |name| {
        encoding::to_server_bytes(name).len()
    })
}

/// The interval as a duration when it is within the bounds; a month counts 30 days, as in comparisons.
fn bounded(interval: Interval, least: Duration, most: Duration) -> Option<Duration> {
    let micros = u64::try_from(interval.as_micros()).ok()?;
    Some(Duration::from_micros(micros)).filter(|d| (least..=most).contains(d))
}

fn arrive(tables: &Tables, request: Request) -> Result<Arrival, Refusal> {
    let Request { tenant, endpoint, key, hash, wait, ttl } = request;
    let scope = match key {
        Ok(key) => Scope { tenant, endpoint, key },
        Err(KeyFault::Missing) => {
            let required = tables.endpoint(&endpoint).is_none_or(|e| e.key_required);
            return Ok(if required { Arrival::Problem(Problem::KeyMissing) } else { Arrival::Unprotected });
        }
        Err(fault) => return Ok(Arrival::Problem(Problem::KeyInvalid(fault))),
    };
    // A ttl that cannot be right is refused whatever the outcome; otherwise only a first arrival needs the registration.
    let rules = match ttl {
        Some(_) => Some(Rules::of(tables.endpoint(&scope.endpoint), ttl, &scope)?),
        None => None,
    };
    let patience = Patience::new(wait);
    let mut lost_races = 0;
    loop {
        let seen = tables.look_up(&scope, &hash, Mode::Read);
        match seen {
            Seen { verdict: Verdict::Replay, response: Some(response) } => return Ok(Arrival::Replay(response)),
            Seen { verdict: Verdict::KeyReused, .. } => return Ok(Arrival::Problem(Problem::KeyReused)),
            Seen { verdict: Verdict::First | Verdict::TakeOver, .. } => {
                if let Some(gate) = Gate::try_enter(&scope) {
                    // Inserting would wait for whoever is deleting a row that this snapshot does not show.
                    let fixed = transaction::snapshot_is_fixed();
                    if fixed && tables.look_up(&scope, &hash, Mode::ReadLatest).verdict != seen.verdict {
                        return Err(Refusal::too_new_to_see(&scope));
                    }
                    let rules = match rules {
                        Some(rules) => rules,
                        None => Rules::of(tables.endpoint(&scope.endpoint), None, &scope)?,
                    };
                    if let Some(execute) = take(tables, &scope, &hash, &rules, seen.verdict) {
                        gate.keep();
                        return Ok(execute);
                    }
                    drop(gate);
                    lost_races += 1;
                    if lost_races < MOST_LOST_RACES {
                        continue; // the row has changed since it was read: look again
                    }
                }
            }
            _ => {}
        }
        // Somebody is at it: another transaction, a committed open claim, or this very transaction.
        if patience.is_over() || guard::is_own(&scope) {
            return Ok(Arrival::Problem(Problem::InProgress));
        }
        if transaction::snapshot_is_fixed() {
            let latest = tables.look_up(&scope, &hash, Mode::ReadLatest);
            if latest.verdict != seen.verdict {
                return Err(Refusal::too_new_to_see(&scope));
            }
        }
        patience.pause();
        lost_races = 0;
    }
}

/// Inserts the claim, or puts it in the place of an expired row; `None` when somebody else was faster.
fn take(tables: &Tables, scope: &Scope, hash: &RequestHash, rules: &Rules, verdict: Verdict) -> Option<Arrival> {
    let claim = NewClaim {
        scope,
        request_hash: hash,
        provider_key: rules.external.then(|| fingerprint::provider_key(scope, hash)),
        may_stay_open: !rules.guarded,
        ttl: rules.ttl,
    };
    let expires_at = match verdict {
        Verdict::First => tables.insert(&claim),
        _ => tables.take_over(&claim),
    }?;
    if claim.may_stay_open {
        transaction::force_durable_commit();
    }
    guard::opened(tables, scope, rules.guarded);
    Some(Arrival::Execute { attempt: 1, provider_key: claim.provider_key, expires_at })
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

/// How long a caller is ready to wait, looking again in growing steps.
struct Patience {
    since: Instant,
    wait: Duration,
    step: Cell<Duration>,
}

impl Patience {
    const FIRST_STEP: Duration = Duration::from_millis(2);
    const LONGEST_STEP: Duration = Duration::from_millis(100);

    fn new(wait: Duration) -> Self {
        Patience { since: Instant::now(), wait, step: Cell::new(Self::FIRST_STEP) }
    }

    fn left(&self) -> Duration {
        self.wait.saturating_sub(self.since.elapsed())
    }

    fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    fn pause(&self) {
        let step = self.step.get();
        transaction::pause(step.min(self.left()));
        self.step.set((step * 2).min(Self::LONGEST_STEP));
    }
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
                Value::optional(stored.headers.as_deref(), Value::payload),
                Value::optional(stored.body.as_deref(), Value::payload),
                Value::optional(stored.resource_ref.as_deref(), Value::payload),
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
