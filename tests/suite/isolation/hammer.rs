//! Many clients at one key, at the levels whose snapshot is fixed, each retrying what it is told to retry.

use super::*;
use harness::at_once;

/// Pays as an application does that retries 40001 and whatever is in progress. What the client is sent.
fn pay_with_retries(client: &mut Client, level: &str, wait: &str, key: &str) -> (bool, Vec<u8>) {
    loop {
        match try_to_pay(client, level, wait, key) {
            Ok(Some(paid)) => return paid,
            Ok(None) => {}
            Err(error) => {
                assert_eq!(sqlstate(&error), "40001", "{level}: {error:?}");
                run(client, "ROLLBACK");
            }
        }
    }
}

fn try_to_pay(
    client: &mut Client,
    level: &str,
    wait: &str,
    key: &str,
) -> Result<Option<(bool, Vec<u8>)>, postgres::Error> {
    client.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}"))?;
    // A read before the claim: the snapshot is old when the claim is made.
    client.query("SELECT count(*) FROM ledger", &[])?;
    let arrival = client.claim_waiting(TENANT, PAY, key, BODY, wait)?;
    let paid = match arrival.outcome.as_str() {
        "execute" => {
            let body: [u8; 16] = rand::random();
            client.execute("INSERT INTO ledger VALUES ($1)", &[&key])?;
            client.complete(TENANT, PAY, key, 201, &body)?;
            Some((true, body.to_vec()))
        }
        "replay" => Some((false, arrival.response_body.expect("the stored body"))),
        other => {
            assert_eq!(other, "in_progress");
            None
        }
    };
    client.batch_execute("COMMIT")?;
    Ok(paid)
}

#[test]
fn one_executes_and_the_others_replay_and_no_other_error_than_40001_is_seen() {
    let db = shop(Cluster::shared());
    let mut clients: Vec<_> = (0..12).map(|_| db.admin()).collect();
    let mut admin = db.admin();
    // The last one mixes the levels.
    for levels in [&LEVELS[..1], &LEVELS[1..], &["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]] {
        for round in 0..8 {
            let key = format!("{} {round}", levels.concat());
            let paid = at_once(&mut clients, |n, client| {
                let wait = if n % 2 == 0 { "0" } else { "1 minute" };
                pay_with_retries(client, levels[n % levels.len()], wait, &key)
            });
            assert_eq!(paid.iter().filter(|(executed, _)| *executed).count(), 1, "{key}");
            assert!(paid.iter().all(|(_, body)| *body == paid[0].1), "{key}");
            assert_eq!((charges(&mut admin, &key), stored(&mut admin, &key)), (1, 1), "{key}");
        }
    }
}
