"""idempotency_enforcer from Python: one function per call, with the casts that every driver needs. Copy it as it is.

The extension is in the schema `idempotency`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb


@dataclass(frozen=True)
class Scope:
    """What a claim is found by."""

    tenant: str
    endpoint: str
    key: str | None


@dataclass(frozen=True)
class Arrival:
    """What `idem_claim` decided. Anything but "execute" (or "unprotected") is sent to the client as it is.

    `attempt` goes into every later call about this claim: it is not always 1.
    """

    outcome: str
    response_code: int | None
    response_headers: list[list[str]] | None
    response_body: bytes | None
    attempt: int | None
    provider_key: UUID | None


@dataclass(frozen=True)
class Result:
    """How a claim ends: the response that is stored, and sent to whoever sends the request again."""

    succeeded: bool
    code: int
    headers: list[list[str]]
    body: bytes


@dataclass(frozen=True)
class StuckClaim:
    """A claim that `idem_reconcile` has handed out."""

    tenant_id: str
    endpoint: str
    key: str
    provider_key: UUID | None
    attempt: int
    recovery_point: str | None
    recovery_state: dict | None
    open_since: datetime

    @property
    def scope(self) -> Scope:
        return Scope(self.tenant_id, self.endpoint, self.key)


class NotTheOwner(Exception):
    """The claim has been taken over, released or finished by somebody else, who decides what becomes of it."""


def claim(conn: psycopg.Connection, scope: Scope, body: bytes, target: str | None = None) -> Arrival:
    """Decides what becomes of a request.

    `target` is the path with its parameters: an endpoint that is a template (`POST /orders/{id}/refund`) needs it.
    """
    with conn.cursor(row_factory=class_row(Arrival)) as cursor:
        cursor.execute(
            "SELECT outcome, response_code, response_headers, response_body, attempt, provider_key"
            "  FROM idempotency.idem_claim(%s::text, %s::text, %s::text, %s::bytea, request_target => %s::text)",
            (scope.tenant, scope.endpoint, scope.key, body, target),
        )
        return cursor.fetchone()


def checkpoint(conn: psycopg.Connection, scope: Scope, attempt: int, point: str, state: dict) -> None:
    _call(
        conn,
        "SELECT idempotency.idem_checkpoint(%s::text, %s::text, %s::text, %s::text, %s::jsonb, %s::int)",
        (scope.tenant, scope.endpoint, scope.key, point, Jsonb(state), attempt),
    )


def finish(conn: psycopg.Connection, scope: Scope, attempt: int, result: Result) -> None:
    """Stores the result. The same result again, from whoever owns the claim, changes nothing."""
    function = "idempotency.idem_complete" if result.succeeded else "idempotency.idem_fail"
    _call(
        conn,
        f"SELECT {function}(%s::text, %s::text, %s::text, %s::int, %s::bytea, %s::jsonb, attempt => %s::int)",
        (scope.tenant, scope.endpoint, scope.key, result.code, result.body, Jsonb(result.headers), attempt),
    )


def release(conn: psycopg.Connection, scope: Scope, attempt: int) -> bool:
    """The effect did not happen and cannot any more: the next arrival executes, with the next attempt.

    False when there is no open claim, as when the same release is sent again.
    """
    return _call(
        conn,
        "SELECT idempotency.idem_release(%s::text, %s::text, %s::text, %s::int)",
        (scope.tenant, scope.endpoint, scope.key, attempt),
    )


def reconcile(conn: psycopg.Connection, max_claims: int, lease: timedelta, endpoint: str) -> list[StuckClaim]:
    with conn.cursor(row_factory=class_row(StuckClaim)) as cursor:
        cursor.execute(
            "SELECT * FROM idempotency.idem_reconcile(%s::int, %s::interval, %s::text)", (max_claims, lease, endpoint)
        )
        return cursor.fetchall()


def _call(conn: psycopg.Connection, sql: str, parameters: tuple) -> bool:
    try:
        return conn.execute(sql, parameters).fetchone()[0]
    except psycopg.Error as error:
        # No such claim, finished with another result, owned by another attempt.
        if error.sqlstate in ("ID001", "ID002", "ID003"):
            raise NotTheOwner(str(error)) from error
        raise
