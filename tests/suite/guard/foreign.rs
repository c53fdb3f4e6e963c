//! A foreign table commits on its own server. What the guard refuses is refused before that, where it is asked first.

use super::*;

// CASES 78
#[test]
fn a_refused_commit_has_not_committed_on_a_foreign_server() {
    let cluster = Cluster::shared();
    if !cluster.installation().has_module("postgres_fdw") {
        return; // some distributions ship without contrib
    }
    let db = shop(cluster);
    let remote = cluster.empty_database("");
    remote.admin().batch_execute("CREATE TABLE effects (key text)").unwrap();
    db.admin()
        .batch_execute(&format!(
            "CREATE EXTENSION postgres_fdw;
             CREATE SERVER remote FOREIGN DATA WRAPPER postgres_fdw
               OPTIONS (host '127.0.0.1', port '{}', dbname '{}');
             CREATE USER MAPPING FOR postgres SERVER remote OPTIONS (user 'postgres');
             CREATE FOREIGN TABLE effects (key text) SERVER remote",
            cluster.port(),
            remote.name()
        ))
        .unwrap();
    let effects = || remote.admin().value::<i64>("SELECT count(*) FROM effects");
    for loaded_first in ["SELECT count(*) FROM effects", "SELECT idem_claim('t', 'POST /x', '', ''::bytea)"] {
        let mut client = db.admin();
        run(&mut client, loaded_first);
        // In a transaction before, so that both are loaded, in either order.
        run(&mut client, "BEGIN");
        expect(&mut client, PAY, "before", "execute");
        run(&mut client, "SELECT count(*) FROM effects; ROLLBACK; BEGIN");
        expect(&mut client, PAY, "k", "execute");
        run(&mut client, "INSERT INTO effects VALUES ('k')");
        refused(&mut client, "COMMIT", PAY, "k");
        assert_eq!(effects(), 0, "{loaded_first}");
    }
    // A completed one commits on both.
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    run(&mut client, "INSERT INTO effects VALUES ('k')");
    complete(&mut client, PAY, "k");
    run(&mut client, "COMMIT");
    assert_eq!(effects(), 1);
}
