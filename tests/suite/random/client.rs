//! A client that does at random whatever a client may do, and remembers what it was told.

use super::*;
use harness::{sqlstate, Arrival};
use postgres::types::ToSql;

/// What a client was told of a request, and could rely on.
#[derive(Debug, Clone)]
pub struct Telling {
    pub endpoint: &'static str,
    pub key: String,
    pub body: Vec<u8>,
    /// An outcome of `idem_claim`; or `finished` (it executed and committed the result), `released` (it had
    /// committed an open claim and released it), `open` (it has left one behind).
    pub outcome: String,
    pub code: Option<i32>,
    pub answer: Option<Vec<u8>>,
}

pub type Told = Vec<Telling>;

impl Telling {
    /// It has committed a claim, for which others could be told that the key is used.
    pub fn holds_the_key(&self) -> bool {
        ["finished", "released", "open"].contains(&self.outcome.as_str())
    }
}

pub struct Client<'a> {
    connection: &'a mut postgres::Client,
    rng: StdRng,
    told: Told,
}

type Step<T> = Result<T, postgres::Error>;

impl<'a> Client<'a> {
    pub fn new(connection: &'a mut postgres::Client, rng: StdRng) -> Self {
        Client { connection, rng, told: vec![] }
    }

    /// Does so many requests, each retried as its error asks for.
    pub fn act(mut self, steps: usize) -> Told {
        for _ in 0..steps {
            let mut requests = vec![self.request()];
            if requests[0].endpoint == PAY && self.rng.random_bool(0.2) {
                requests.push(Telling { endpoint: PAY, ..self.request() });
            }
            loop {
                let done = if requests[0].endpoint == PAY {
                    self.in_one_transaction(&requests)
                } else {
                    self.in_two_transactions(&requests[0])
                };
                match done {
                    Ok(told) => break self.told.extend(told),
                    Err(error) => {
                        assert_eq!(sqlstate(&error), "40001", "{error:?}");
                        run(self.connection, "ROLLBACK");
                    }
                }
            }
        }
        self.told
    }

    fn request(&mut self) -> Telling {
        // One arrival in eight has another body than the rest.
        let body: &[u8] = if self.rng.random_bool(0.125) { b"another" } else { BODY };
        Telling {
            endpoint: ENDPOINTS[self.rng.random_range(0..ENDPOINTS.len())],
            key: self.rng.random_range(0..KEYS).to_string(),
            body: body.into(),
            outcome: String::new(),
            code: None,
            answer: None,
        }
    }

    fn begin(&mut self) -> Step<()> {
        let level =
            ["READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][self.rng.random_range(0..4)];
        self.connection.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}"))?;
        if self.rng.random_bool(0.5) {
            self.connection.query("SELECT FROM expiries LIMIT 1", &[])?; // takes the snapshot
        }
        Ok(())
    }

    fn claim(&mut self, request: &Telling) -> Step<Arrival> {
        let wait = ["0", "0", "5 ms", "200 ms"][self.rng.random_range(0..4)];
        self.connection.claim_waiting(TENANT, request.endpoint, &request.key, &request.body, wait)
    }

    /// Effect, result and its record in the ledger of results; the effect of a failure is rolled back.
    fn finish(&mut self, request: &Telling, attempt: Option<i32>) -> Step<Telling> {
        let answer: [u8; 16] = self.rng.random();
        let fails = self.rng.random_bool(0.2);
        self.connection.batch_execute("SAVEPOINT work")?;
        let effect = format!("{} {}", request.endpoint, request.key);
        self.connection.execute("INSERT INTO ledger VALUES ($1)", &[&effect])?;
        let code = if fails { 402 } else { 201 };
        if fails {
            self.connection.batch_execute("ROLLBACK TO work")?;
        }
        let finish = if fails { "idem_fail" } else { "idem_complete" };
        let finish = format!("SELECT {finish}($1, $2, $3, $4, $5::bytea, attempt => $6)");
        let arguments: [&(dyn ToSql + Sync); 6] =
            [&TENANT, &request.endpoint, &request.key, &code, &answer.as_slice(), &attempt];
        assert!(self.connection.query_one(&finish, &arguments)?.get::<_, bool>(0), "stored now");
        self.connection.execute(
            "INSERT INTO results VALUES ($1, $2, $3, $4, $5)",
            &[&request.endpoint, &request.key, &request.body, &code, &answer.as_slice()],
        )?;
        Ok(Telling { outcome: "finished".into(), code: Some(code), answer: Some(answer.into()), ..request.clone() })
    }

    /// A call with an attempt that must fail, and changes nothing.
    fn is_refused(&mut self, function: &str, request: &Telling, attempt: Option<i32>, code: &str) -> Step<()> {
        self.connection.batch_execute("SAVEPOINT refused")?;
        let sql = format!("SELECT {function}($1, $2, $3, $4)");
        let refused = self.connection.query_one(&sql, &[&TENANT, &request.endpoint, &request.key, &attempt]);
        let error = refused.expect_err("it should have been refused");
        if sqlstate(&error) != code {
            return Err(error);
        }
        self.connection.batch_execute("ROLLBACK TO refused")
    }

    /// Claims and finishes, with the detours that a transaction may take. What holds when it has ended.
    fn in_one_transaction(&mut self, requests: &[Telling]) -> Step<Told> {
        self.begin()?;
        // Told by others, which holds anyway; and what this transaction has done, which holds if it commits.
        let (mut kept, mut done) = (vec![], vec![]);
        // What it is told of its own claims holds for nobody else.
        let mut own = vec![];
        let mut left_open = false;
        for request in requests {
            if self.rng.random_bool(0.15) {
                self.connection.batch_execute("SAVEPOINT claim")?;
                self.claim(request)?;
                self.connection.batch_execute("ROLLBACK TO claim")?;
            }
            let arrival = self.claim(request)?;
            if arrival.outcome != "execute" {
                if !own.contains(&&request.key) {
                    kept.push(told(request, arrival));
                }
                continue;
            }
            own.push(&request.key);
            assert_eq!(self.claim(request)?.outcome, "in_progress", "its own");
            if self.rng.random_bool(0.15) {
                self.connection.batch_execute("SAVEPOINT undone")?;
                self.finish(request, None)?;
                self.connection.batch_execute("ROLLBACK TO undone")?;
            }
            if self.rng.random_bool(0.1) {
                self.is_refused("idem_release", request, arrival.attempt, "ID004")?;
            }
            if self.rng.random_bool(0.1) {
                left_open = true;
            } else {
                done.push(self.finish(request, None)?);
            }
        }
        if self.rng.random_bool(0.2) {
            self.connection.batch_execute("ROLLBACK")?;
            return Ok(kept);
        }
        match self.connection.batch_execute("COMMIT") {
            Ok(()) => {
                assert!(!left_open, "a claim was committed open");
                kept.extend(done);
            }
            Err(error) if left_open && sqlstate(&error) == "ID004" => {}
            Err(error) => return Err(error),
        }
        Ok(kept)
    }

    /// Commits the claim open, and finishes, releases or abandons it later.
    fn in_two_transactions(&mut self, request: &Telling) -> Step<Told> {
        self.begin()?;
        let arrival = self.claim(request)?;
        if self.rng.random_bool(0.15) {
            self.connection.batch_execute("ROLLBACK")?;
            return Ok(if arrival.outcome == "execute" { vec![] } else { vec![told(request, arrival)] });
        }
        self.connection.batch_execute("COMMIT")?;
        if arrival.outcome != "execute" {
            return Ok(vec![told(request, arrival)]);
        }
        let end = |outcome: &str| vec![Telling { outcome: outcome.into(), ..request.clone() }];
        let fate = self.rng.random_range(0..100);
        if fate == 0 {
            return Ok(end("open"));
        }
        // The claim is this client's: it tries until its end is committed.
        loop {
            match self.end_open_claim(request, arrival.attempt, fate < 20) {
                Ok(Some(finished)) => return Ok(vec![finished]),
                Ok(None) if fate < 20 => return Ok(end("released")),
                Ok(None) => {}
                Err(error) => {
                    assert_eq!(sqlstate(&error), "40001", "{error:?}");
                    run(self.connection, "ROLLBACK");
                }
            }
        }
    }

    /// `None` when it was released, or rolled back instead of finished.
    fn end_open_claim(&mut self, request: &Telling, attempt: Option<i32>, release: bool) -> Step<Option<Telling>> {
        self.begin()?;
        // Whoever held the key before, or makes numbers up, is refused.
        for other in [attempt.map(|n| n - 1), attempt.map(|n| n + 1)] {
            self.is_refused("idem_release", request, other, "ID003")?;
        }
        if release {
            let sql = "SELECT idem_release($1, $2, $3, $4)";
            let released = self.connection.query_one(sql, &[&TENANT, &request.endpoint, &request.key, &attempt])?;
            assert!(released.get::<_, bool>(0));
            self.connection.batch_execute("COMMIT")?;
            return Ok(None);
        }
        let finished = self.finish(request, attempt)?;
        if self.rng.random_bool(0.2) {
            self.connection.batch_execute("ROLLBACK")?;
            return Ok(None);
        }
        self.connection.batch_execute("COMMIT")?;
        Ok(Some(finished))
    }
}

fn told(request: &Telling, arrival: Arrival) -> Telling {
    Telling { outcome: arrival.outcome, code: arrival.response_code, answer: arrival.response_body, ..request.clone() }
}
