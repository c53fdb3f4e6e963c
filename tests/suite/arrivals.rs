//! What a request is answered: each outcome of `idem_claim`, and the results it replays.

use harness::{Calls, Cluster};

#[test]
fn first_executes_and_second_replays() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let first = c.claim("t", "POST /x", "k", b"{}").unwrap();
    assert_eq!((first.outcome.as_str(), first.attempt), ("execute", Some(1)));
    c.complete("t", "POST /x", "k", 201, b"\0\xff\r\n").unwrap();
    let second = c.claim("t", "POST /x", "k", b"{}").unwrap();
    assert_eq!(second.outcome, "replay");
    assert_eq!(second.response_code, Some(201));
    assert_eq!(second.response_body.as_deref(), Some(&b"\0\xff\r\n"[..]));
}
