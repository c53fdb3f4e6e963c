//! The payment example end to end: whatever dies or fails between claim and completion, an order is charged once or,
//! if declined, never; each retry gets the same final answer; nothing stays open.

mod world;

use world::{Answer, Order, Service, World};

fn order(id: impl Into<String>, card: &'static str) -> Order {
    Order { id: id.into(), card }
}

#[track_caller]
fn assert_told_to_retry(answer: Option<Answer>) {
    let answer = answer.expect("an answer");
    assert_eq!(answer.code, 409, "{}", answer.body);
    assert!(answer.headers.contains(&"retry-after: 2".to_string()), "{:?}", answer.headers);
    assert!(answer.headers.contains(&"content-type: application/problem+json".to_string()), "{:?}", answer.headers);
}

/// Where the service kills itself, and whether a retry gets a final answer before the reconciler has been there.
const CRASHES: [(&str, &str, bool); 7] = [
    ("before_claim_commit", "card_ok", true),
    ("after_claim_commit", "card_ok", false),
    ("after_charge", "card_ok", false),
    ("after_charge", "card_declined", false),
    ("before_completion_commit", "card_ok", false),
    ("before_completion_commit", "card_declined", false),
    ("after_completion_commit", "card_ok", true),
];

#[test]
fn a_service_killed_at_any_step_charges_each_order_once_and_answers_each_retry_the_same() {
    let world = World::start("2");
    let service = world.service(&[]);
    let crashing: Vec<(Order, Service, bool)> = CRASHES
        .iter()
        .map(|(step, card, final_at_once)| {
            (order(format!("{step}-{card}"), card), world.service(&[("PAYMENTS_CRASH_AT", step)]), *final_at_once)
        })
        .collect();
    service.until_ready();
    let mut orders = Vec::new();
    for (order, crashing, final_at_once) in crashing {
        assert_eq!(crashing.until_ready().pay(&order), None, "{order:?}: the connection is lost");
        crashing.until_crashed();
        let retry = service.pay(&order);
        if final_at_once {
            world.check_settled(&service, &order, &retry.expect("an answer"));
        } else {
            assert_told_to_retry(retry);
            orders.push(order);
        }
    }

    // During the call: the provider has the request and goes on with it when the service is gone.
    let slow = order("during_call", "card_slow");
    let dying = world.service(&[]);
    dying.until_ready();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(dying.pay(&slow), None, "the connection is lost"));
        world.until_provider_has(&slow);
        dying.signal(libc::SIGKILL);
    });
    dying.until_crashed();
    assert_told_to_retry(service.pay(&slow));
    orders.push(slow);

    // The first reconcilers die as well, each at a step of its own, and leave their leases.
    world.reconciler(&[("PAYMENTS_CRASH_AT", "after_charge")]).until_crashed();
    world.reconciler(&[("PAYMENTS_CRASH_AT", "before_completion_commit")]).until_crashed();
    let _reconcilers = [world.reconciler(&[]), world.reconciler(&[])];
    for order in &orders {
        let answer = service.pay_until_answered(order);
        world.check_settled(&service, order, &answer);
    }
    world.check_nothing_is_open();
}

#[test]
fn whatever_the_provider_does_each_order_is_charged_once_and_settled() {
    let world = World::start("2.5");
    let impatient = world.service(&[("PAYMENTS_PROVIDER_TIMEOUT", "1")]);
    let patient = world.service(&[]);
    impatient.until_ready();
    patient.until_ready();
    for card in ["card_ok", "card_declined"] {
        let order = order(card, card);
        let answer = impatient.pay(&order).expect("an answer");
        world.check_settled(&impatient, &order, &answer);
    }

    // The outcome is unknown: the first arrival is told what a retry is told.
    let cards = ["card_drop_before", "card_drop_after", "card_error_before", "card_error_after", "card_slow"];
    let mut orders: Vec<Order> = cards.iter().map(|card| order(*card, card)).collect();
    for order in &orders {
        assert_told_to_retry(impatient.pay(order));
        assert_told_to_retry(patient.pay(order));
    }
    let charged: Vec<usize> = orders.iter().map(|order| world.charges(order).len()).collect();
    assert_eq!(charged[..4], [0, 1, 0, 1]);

    // An owner that is alive and slow: the claim is taken over under its hands, and it tells the client the truth.
    let overtaken = order("overtaken", "card_slow");
    let _reconcilers = [world.reconciler(&[]), world.reconciler(&[])];
    let told = std::thread::scope(|scope| {
        let client = scope.spawn(|| patient.pay(&overtaken).expect("an answer"));
        world.until_provider_has(&overtaken);
        patient.signal(libc::SIGSTOP);
        harness::wait_until("a reconciler to take the claim over", || world.attempt(&overtaken) > 1);
        patient.signal(libc::SIGCONT);
        client.join().unwrap()
    });
    let answer = impatient.pay_until_answered(&overtaken);
    assert!(told.code == 409 || told == answer, "{told:?} {answer:?}");
    orders.push(overtaken);

    for order in &orders {
        let answer = impatient.pay_until_answered(order);
        world.check_settled(&impatient, order, &answer);
    }
    world.check_nothing_is_open();
}

/// The claim is lost, as by a failover or a restore: the retry sends the provider the same key.
#[test]
fn a_retry_after_the_claim_was_lost_is_not_charged_again() {
    let world = World::start("1");
    let service = world.service(&[]);
    service.until_ready();
    let mut admin = world.admin();
    let finished = order("finished", "card_ok");
    let declined = order("declined", "card_declined");
    let open = order("open", "card_drop_after");
    let answers = [service.pay(&finished), service.pay(&declined)];
    assert_told_to_retry(service.pay(&open));
    admin.batch_execute("DELETE FROM idempotency_keys; DELETE FROM payments").unwrap();
    for (order, before) in [&finished, &declined].iter().zip(answers) {
        let again = service.pay(order);
        assert_eq!(again, before, "the same charge, the same bytes");
        world.check_settled(&service, order, &again.unwrap());
    }
    let answer = service.pay(&open).expect("an answer");
    world.check_settled(&service, &open, &answer);
    // Only the claims are lost, the payments are there.
    admin.batch_execute("DELETE FROM idempotency_keys").unwrap();
    for order in [&finished, &declined, &open] {
        let answer = service.pay(order).expect("an answer");
        world.check_settled(&service, order, &answer);
    }
    world.check_nothing_is_open();

    // What is not a first arrival is answered without a word to the provider.
    let body = r#"{"order": "other", "amount": 1, "currency": "EUR", "card": "card_ok"}"#;
    assert_eq!(service.post(&["X-Account: acct_1"], body).code, 400, "no key");
    assert_eq!(service.post(&["X-Account: acct_1", "Idempotency-Key: finished"], body).code, 422, "another body");
    assert_eq!(world.charges(&order("other", "card_ok")), [""; 0]);
    assert_eq!(service.post(&["X-Account: acct_2", "Idempotency-Key: finished"], body).code, 201, "another account");
    assert_eq!(world.charges(&order("other", "card_ok")), ["succeeded"]);
}
