//! CASES 44: a document that is short as it is stored and hundreds of megabytes as text.

use harness::{sqlstate, Calls, Cluster, Shutdown};

/// Each element is stored in sixteen bytes and has 131 072 digits.
const DOCUMENT: &str = "(SELECT jsonb_agg(1e131071::numeric) FROM generate_series(1, 1000))";

#[test]
fn a_document_that_grows_when_it_is_read_does_not_end_the_server() {
    let cluster = Cluster::start(&["shared_buffers = 16MB", "max_connections = 20", "jit = off"]);
    let mut admin = cluster.connect();
    admin
        .batch_execute(
            "CREATE EXTENSION idempotency_enforcer; SELECT idem_protect('POST /x', 'external');
             SELECT idem_claim('t', 'POST /x', 'k', ''::text)",
        )
        .unwrap();
    drop(admin);
    // Of KiB: from too little for the text to enough for two copies of it.
    for limit in [250_000, 300_000, 350_000, 400_000, 450_000, 600_000] {
        cluster.stop(Shutdown::Fast);
        cluster.start_again_under(&format!("-v {limit}"));
        for call in [
            format!("SELECT idem_complete('t', 'POST /x', 'k', 200, ''::text, {DOCUMENT})"),
            format!("SELECT idem_checkpoint('t', 'POST /x', 'k', 'step', {DOCUMENT})"),
        ] {
            let refused = cluster.connect().batch_execute(&call).unwrap_err();
            assert!(["22023", "53200"].contains(&sqlstate(&refused)), "{limit}: {refused:?}");
        }
    }
    assert!(!cluster.log().contains("was terminated by signal"), "{}", cluster.log());
    assert_eq!(cluster.connect().value::<i64>("SELECT count(*) FROM idempotency_keys"), 1);
}
