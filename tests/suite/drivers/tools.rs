//! ORMs and migration tools: what docs/tools.md says of them.

use super::{check_client, python};
use harness::Cluster;

// CASES 57
#[test]
fn tools_leave_an_extension_in_a_schema_of_its_own_alone() {
    let db = Cluster::shared().empty_database("");
    db.admin()
        .batch_execute(
            "CREATE SCHEMA idempotency; CREATE EXTENSION idempotency_enforcer SCHEMA idempotency;
             SELECT idempotency.idem_protect('POST /payments');
             CREATE TABLE orders (id int PRIMARY KEY)",
        )
        .unwrap();
    check_client(python(), "python/tools.py", &db, "postgres", db.cluster().port());
}
