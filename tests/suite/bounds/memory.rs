//! A server with little memory refuses what does not fit, and goes on.

use super::BOUNDED;
use harness::{sqlstate, Calls, Cluster};

// CASES 44
#[test]
fn arguments_of_hundreds_of_megabytes_never_take_the_server_down() {
    let cluster = Cluster::start(&[]);
    cluster.stop(harness::Shutdown::Fast);
    cluster.start_again_under("-v 1800000");
    let db = cluster.database();
    let mut c = db.admin();
    super::open_claim(&mut c);
    let started = c.value::<String>("SELECT pg_postmaster_start_time()::text");
    // Also as values that are small as they are stored, and large when they are read.
    c.batch_execute(
        "CREATE TABLE stored (n int, body text);
         INSERT INTO stored SELECT n, repeat('x', n * 1000000) FROM unnest(ARRAY[30, 300]) n",
    )
    .unwrap();
    let calls = BOUNDED.iter().map(|(_, call, _)| *call).chain([
        "idem_claim('t', 'POST /x', {}, ''::bytea)",
        "idem_claim('t', 'POST /x', 'new', {}::text)",
        "idem_claim('t', 'POST /x', 'new', {}::bytea)",
        "idem_claim('t', 'POST /x', 'new', NULL::bytea, NULL, {}::bytea)",
        "idem_complete('t', 'POST /x', 'k', 200, {}::text)",
        "idem_complete('t', 'POST /x', 'k', 200, {}::bytea)",
        "idem_complete('t', 'POST /x', {}, 200, ''::bytea)",
        "idem_fail('t', 'POST /x', 'k', 200, ''::bytea, to_jsonb({}))",
        "idem_protect('POST /y', guesses => ARRAY[{}])",
    ]);
    let huge = ["repeat('x', 700000000)", "(SELECT body FROM stored WHERE n = 300)"];
    for (n, call) in calls.enumerate() {
        for value in ["(SELECT body FROM stored WHERE n = 30)", huge[n % 2]] {
            // Refused by its length, or out of memory before that: by PostgreSQL, which says so.
            let outcome = c.query(&format!("SELECT {}", call.replace("{}", value)), &[]);
            if let Err(e) = outcome {
                let known = ["22023", "53200", "54000", "ID001", "ID005", "ID006"];
                assert!(known.contains(&sqlstate(&e)), "{call} {value}: {e:?}");
            }
        }
    }
    assert_eq!(c.value::<String>("SELECT pg_postmaster_start_time()::text"), started);
    assert!(!cluster.log().contains("was terminated"), "{}", cluster.log());
}
