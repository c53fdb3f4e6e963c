//! What the calls cost beside the hand-written table that they replace: run by `make bench`.
//!
//! Both sides run in turns on one server, so that what else the machine does falls on both; the numbers are ratios
//! of one round to the next, and the median of all rounds is what counts.

use harness::Cluster;
use postgres::{Client, Statement};
use std::time::{Duration, Instant};

const ROUNDS: usize = 15;
const CALLS: usize = 2_000;
const BODY: [u8; 300] = [b'x'; 300];
const REQUEST: [u8; 100] = [b'r'; 100];

/// The table that one would write by hand.
const BY_HAND: &str = "
    CREATE TABLE by_hand (
      tenant_id text NOT NULL, endpoint text NOT NULL, key text NOT NULL, request_hash bytea NOT NULL,
      status text NOT NULL DEFAULT 'in_progress', response_code int, response_headers jsonb, response_body bytea,
      created_at timestamptz NOT NULL DEFAULT now(), expires_at timestamptz NOT NULL DEFAULT now() + interval '24 h',
      PRIMARY KEY (tenant_id, endpoint, key)) WITH (fillfactor = 70);
    CREATE INDEX ON by_hand (expires_at);";

/// A first arrival and a repeated one, as two statements and one.
struct Side {
    name: &'static str,
    client: Client,
    claim: Statement,
    complete: Statement,
    replay: Statement,
}

impl Side {
    fn new(name: &'static str, mut client: Client, [claim, complete, replay]: [&str; 3]) -> Side {
        let claim = client.prepare(claim).expect(name);
        let complete = client.prepare(complete).expect(name);
        let replay = client.prepare(replay).expect(name);
        Side { name, client, claim, complete, replay }
    }

    /// Claim and completion in one transaction.
    fn execute(&mut self, round: usize) -> Duration {
        let since = Instant::now();
        for i in 0..CALLS {
            let key = key(round, i);
            let mut tx = self.client.transaction().unwrap();
            tx.execute(&self.claim, &[&"tenant", &"POST /pay", &key, &&REQUEST[..]]).unwrap();
            tx.execute(&self.complete, &[&"tenant", &"POST /pay", &key, &&BODY[..]]).unwrap();
            tx.commit().unwrap();
        }
        since.elapsed()
    }

    fn replay(&mut self, round: usize) -> Duration {
        let since = Instant::now();
        for i in 0..CALLS {
            let row = self.client.query_one(&self.replay, &[&"tenant", &"POST /pay", &key(round, i), &&REQUEST[..]]);
            assert_eq!(row.expect(self.name).get::<_, &[u8]>(0), &BODY[..]);
        }
        since.elapsed()
    }

    /// The same two inside the server, without the way to and from the client: microseconds a call.
    fn inside(&mut self, statement: &str, round: usize) -> Duration {
        let body = format!(
            "DO $$ BEGIN FOR i IN 0..{CALLS} - 1 LOOP
               {} END LOOP; END $$",
            statement.replace("$key", &format!("'inside {round} ' || i"))
        );
        let since = Instant::now();
        self.client.batch_execute(&body).expect(self.name);
        since.elapsed()
    }
}

fn key(round: usize, i: usize) -> String {
    format!("01890a5d-ac96-774b-{round:04}-{i:012}")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs both in turns, swapping who is first, and prints the medians.
fn compare(what: &str, mut ours: impl FnMut(usize) -> Duration, mut hand: impl FnMut(usize) -> Duration) {
    let (mut micros, mut hand_micros, mut ratios) = (vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        let (o, h) = if round % 2 == 0 {
            let o = ours(round);
            (o, hand(round))
        } else {
            let h = hand(round);
            (ours(round), h)
        };
        let per_call = |d: Duration| d.as_secs_f64() * 1e6 / CALLS as f64;
        micros.push(per_call(o));
        hand_micros.push(per_call(h));
        ratios.push(o.as_secs_f64() / h.as_secs_f64());
    }
    println!("{what:<46} {:>8.1} {:>8.1} {:>6.2}", median(micros), median(hand_micros), median(ratios));
}

fn main() {
    let cluster = Cluster::start(&["synchronous_commit = off", "autovacuum = off", "jit = off"]);
    let db = cluster.database();
    db.admin().batch_execute(&format!("SELECT idem_protect('POST /pay'); {BY_HAND}")).expect("the tables");
    let mut ours = Side::new(
        "extension",
        db.admin(),
        [
            "SELECT outcome FROM idem_claim($1, $2, $3, $4::bytea)",
            "SELECT idem_complete($1, $2, $3, 201, $4::bytea)",
            "SELECT response_body, outcome, response_code, response_headers FROM idem_claim($1, $2, $3, $4::bytea)",
        ],
    );
    let mut hand = Side::new(
        "by hand",
        db.admin(),
        [
            "INSERT INTO by_hand (tenant_id, endpoint, key, request_hash) VALUES ($1, $2, $3, sha256($4))
             ON CONFLICT DO NOTHING",
            "UPDATE by_hand SET status = 'succeeded', response_code = 201, response_body = $4
              WHERE tenant_id = $1 AND endpoint = $2 AND key = $3",
            "SELECT response_body, status, response_code, response_headers, request_hash = sha256($4)
               FROM by_hand WHERE tenant_id = $1 AND endpoint = $2 AND key = $3",
        ],
    );
    println!("{:<46} {:>8} {:>8} {:>6}", "microseconds, medians", "ours", "by hand", "ratio");
    compare("claim + complete, INSERT + UPDATE: a transaction", |r| ours.execute(r), |r| hand.execute(r));
    compare("replay, SELECT by primary key", |r| ours.replay(r), |r| hand.replay(r));
    compare(
        "claim + complete, inside the server",
        |r| {
            ours.inside(
                "PERFORM idem_claim('t', 'POST /pay', $key, 'request'::text);
                 PERFORM idem_complete('t', 'POST /pay', $key, 201, 'response'::text);",
                r,
            )
        },
        |r| {
            hand.inside(
                "INSERT INTO by_hand (tenant_id, endpoint, key, request_hash)
                 VALUES ('t', 'POST /pay', $key, sha256('request')) ON CONFLICT DO NOTHING;
                 UPDATE by_hand SET status = 'succeeded', response_code = 201, response_body = 'response'
                  WHERE tenant_id = 't' AND endpoint = 'POST /pay' AND key = $key;",
                r,
            )
        },
    );
    compare(
        "replay, inside the server",
        |r| ours.inside("PERFORM idem_claim('t', 'POST /pay', $key, 'request'::text);", r),
        |r| {
            hand.inside(
                "PERFORM response_body, status, response_code, response_headers, request_hash = sha256('request')
                    FROM by_hand WHERE tenant_id = 't' AND endpoint = 'POST /pay' AND key = $key;",
                r,
            )
        },
    );
}
