"""Settles payments whose service died or never got an answer. Run one, or several: they never get the same claim."""

import logging
import os
import time
from datetime import datetime, timedelta, timezone

import psycopg

import idempotency
from idempotency import NotTheOwner, StuckClaim
from payments import ENDPOINT, Order, OutcomeUnknown, Provider, crash_point, settle

BATCH = 10
# Long enough to settle a batch; when it has run out, another reconciler may take what is left.
LEASE = timedelta(seconds=float(os.environ.get("PAYMENTS_LEASE", "300")))
PAUSE = float(os.environ.get("PAYMENTS_PAUSE", "10"))
# After this time the provider may have forgotten the key, and charge again: a person must look.
PROVIDER_REMEMBERS = timedelta(hours=12)

log = logging.getLogger("reconciler")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    # A warning says what was not settled; each request to the provider need not be logged.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    provider = Provider()
    while True:
        try:
            with psycopg.connect(
                os.environ.get("DATABASE_URL", "dbname=payments user=payments_reconciler"), autocommit=True
            ) as conn:
                while True:
                    run_once(conn, provider)
                    time.sleep(PAUSE)
        except psycopg.OperationalError as error:
            log.warning("no database: %s", error)
            time.sleep(PAUSE)


def run_once(conn: psycopg.Connection, provider: Provider) -> None:
    # Autocommit: the claims are ours, and refused to their old owners, before we ask the provider.
    for claim in idempotency.reconcile(conn, BATCH, LEASE, ENDPOINT):
        try:
            settle_claim(conn, provider, claim)
        except OutcomeUnknown as error:
            log.warning("payment %s stays open until the lease runs out: %s", claim.provider_key, error)
        except NotTheOwner as error:
            log.warning("payment %s was taken over: the lease is too short: %s", claim.provider_key, error)


def settle_claim(conn: psycopg.Connection, provider: Provider, claim: StuckClaim) -> None:
    if claim.recovery_state is None:
        raise OutcomeUnknown("no checkpoint, which the service commits with each claim: see the runbook")
    charge = provider.look_up(claim.provider_key)
    if charge is None:
        # Never heard of it, but the service's request may still be under way: not a reason to release the claim. Sent
        # again with the same key it is charged once, whichever request comes first.
        if datetime.now(timezone.utc) - claim.open_since > PROVIDER_REMEMBERS:
            raise OutcomeUnknown("unknown to the provider, and too old to be sent again: see the runbook")
        charge = provider.charge(claim.provider_key, Order(**claim.recovery_state))
    crash_point("after_charge")
    settle(conn, claim.scope, claim.attempt, claim.provider_key, charge)
    log.info("payment %s %s", claim.provider_key, charge.status)


if __name__ == "__main__":
    main()
