//! The guard beside postgres_fdw, which commits on the other server when the transaction is about to commit here.

use super::refused;
use crate::payments::*;
use harness::{Calls, Cluster};

// CASES 78
#[test]
fn the_guard_refuses_before_a_foreign_server_commits_once_the_session_has_used_it() {
    let cluster = Cluster::shared();
    if !cluster.installation().has_module("postgres_fdw") {
        eprintln!("not tested: postgres_fdw is not installed");
        return;
    }
    let db = shop(cluster);
    let mut client = db.admin();
    run(
        &mut client,
        &format!(
            "CREATE EXTENSION postgres_fdw;
             CREATE SERVER other FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '{}', dbname '{}');
             CREATE USER MAPPING FOR postgres SERVER other OPTIONS (user 'postgres');
             CREATE FOREIGN TABLE foreign_ledger (key text) SERVER other OPTIONS (table_name 'ledger')",
            cluster.port(),
            db.name()
        ),
    );
    let mut used_before = db.admin();
    assert_eq!(used_before.value::<i64>("SELECT count(*) FROM foreign_ledger"), 0);
    let mut used_after_the_claim = db.admin();
    // What docs/rules.md warns of: postgres_fdw registers itself when it is first used, and is then asked first.
    for (client, key, committed_there) in [(&mut used_before, "k1", 0), (&mut used_after_the_claim, "k2", 1)] {
        run(client, "BEGIN");
        expect(client, PAY, key, "execute");
        client.execute("INSERT INTO foreign_ledger VALUES ($1)", &[&key]).unwrap();
        refused(client, "COMMIT", PAY, key);
        let mut admin = db.admin();
        assert_eq!((charges(&mut admin, key), stored(&mut admin, key)), (committed_there, 0), "{key}");
    }
}
