"""What the service and its reconciler share: the settings, the provider, and how a payment is settled."""

import json
import os
import signal
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

import httpx
import psycopg
from pydantic import Field

import idempotency
from idempotency import Result, Scope

ENDPOINT = "POST /payments"

PROVIDER_URL = os.environ.get("PROVIDER_URL", "http://127.0.0.1:8081")
# No answer within this time leaves the claim open. The endpoint's stuck_after must be longer.
PROVIDER_TIMEOUT = float(os.environ.get("PAYMENTS_PROVIDER_TIMEOUT", "10"))


@dataclass(frozen=True)
class Order:
    """What is to be paid: enough to send the charge again, which is why it goes into the checkpoint."""

    order: Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]
    amount: Annotated[int, Field(gt=0, lt=100_000_000)]
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")]
    card: Annotated[str, Field(pattern=r"^\w{1,64}$")]


@dataclass(frozen=True)
class Charge:
    """The provider's definite answer: it has charged, or it never will under this key."""

    id: str
    status: str  # "succeeded" or "declined"


class OutcomeUnknown(Exception):
    """Nobody knows whether the card was charged: no answer, or none that says so."""


# What settles a payment. Anything else (a 5xx, a 409, a 401, a page of a proxy) says nothing about the card.
DEFINITE = {(201, "succeeded"), (402, "declined"), (200, "succeeded"), (200, "declined")}


class Provider:
    def __init__(self) -> None:
        self._http = httpx.Client(base_url=PROVIDER_URL, timeout=PROVIDER_TIMEOUT)

    def charge(self, provider_key: UUID, order: Order) -> Charge:
        """Charges the card. May be sent again with the same key: the provider charges once for each key."""
        request = {"reference": order.order, "amount": order.amount, "currency": order.currency, "card": order.card}
        return self._ask("POST", "/charges", headers={"Idempotency-Key": str(provider_key)}, json=request)

    def look_up(self, provider_key: UUID) -> Charge | None:
        """What became of the charge; None when the provider has never seen this key."""
        return self._ask("GET", f"/charges/{provider_key}")

    def _ask(self, method: str, path: str, **request) -> Charge | None:
        try:
            answer = self._http.request(method, path, **request)
            if (method, answer.status_code) == ("GET", 404):
                return None
            content = answer.json()
            charge = Charge(content["id"], content["status"])
        except httpx.TransportError as error:
            raise OutcomeUnknown(f"no answer: {error!r}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise OutcomeUnknown(f"the provider answered {answer.status_code}") from error
        if (answer.status_code, charge.status) not in DEFINITE:
            raise OutcomeUnknown(f"the provider answered {answer.status_code}, {charge.status}")
        return charge


def settle(conn: psycopg.Connection, scope: Scope, attempt: int, provider_key: UUID, charge: Charge) -> Result:
    """Stores what the provider said, with the payment, in one transaction. Raises NotTheOwner, changing nothing.

    The response depends on the charge alone: whoever settles the payment stores the same bytes.
    """
    paid = charge.status == "succeeded"
    body = json.dumps({"payment": str(provider_key), "status": "paid" if paid else "declined", "charge": charge.id})
    headers = [["content-type", "application/json"], ["location", f"/payments/{provider_key}"]]
    result = Result(paid, 201 if paid else 402, headers, body.encode())
    with conn.transaction():
        conn.execute(
            "UPDATE payments SET status = %s, charge = %s WHERE id = %s",
            ("paid" if paid else "declined", charge.id, provider_key),
        )
        idempotency.finish(conn, scope, attempt, result)
        crash_point("before_completion_commit")
    crash_point("after_completion_commit")
    return result


def crash_point(name: str) -> None:
    """For the tests: the process dies here when PAYMENTS_CRASH_AT says so. Leave it out of your copy."""
    if os.environ.get("PAYMENTS_CRASH_AT") == name:
        os.kill(os.getpid(), signal.SIGKILL)
