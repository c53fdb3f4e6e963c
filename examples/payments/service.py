"""A payment service: each POST /payments charges the card at most once, whatever crashes on the way.

Run it with: uvicorn service:app
"""

import os
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated

import psycopg
from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from psycopg_pool import ConnectionPool
from pydantic import TypeAdapter, ValidationError

import idempotency
from idempotency import Arrival, NotTheOwner, Result, Scope
from payments import ENDPOINT, Order, OutcomeUnknown, Provider, crash_point, settle

# A connection is in autocommit: what belongs together is in a conn.transaction() block, the call to the provider in
# none.
pool = ConnectionPool(
    os.environ.get("DATABASE_URL", "dbname=payments user=payments_service"),
    kwargs={"autocommit": True},
    check=ConnectionPool.check_connection,
    open=False,
)
provider = Provider()
order_type = TypeAdapter(Order)


@asynccontextmanager
async def lifespan(_: FastAPI):
    with pool:
        yield


app = FastAPI(lifespan=lifespan)


async def raw_body(request: Request) -> bytes:
    """The bytes that the client sent: they are what is compared when the key comes again."""
    return await request.body()


@app.post("/payments")
def create_payment(
    body: Annotated[bytes, Depends(raw_body)],
    x_account: Annotated[str, Header()],  # stands in for authentication: never take the tenant from the client
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    try:
        order = order_type.validate_json(body)
    except ValidationError as error:
        raise HTTPException(422, error.errors(include_input=False, include_url=False)) from error
    scope = Scope(x_account, ENDPOINT, idempotency_key)

    # 1. The claim, the local step, and how far we are: committed together, before anything happens outside. So whoever
    # finds the claim open knows what to send, and never has to release it.
    with pool.connection() as conn, conn.transaction():
        arrival = idempotency.claim(conn, scope, body)
        if arrival.outcome == "execute":
            record(conn, arrival, scope, order)
            crash_point("before_claim_commit")
    if arrival.outcome != "execute":
        return as_it_is(arrival)
    crash_point("after_claim_commit")

    try:
        # 2. The charge, in no transaction: no connection is held while the provider thinks.
        charge = provider.charge(arrival.provider_key, order)
        crash_point("after_charge")
        # 3. The result.
        with pool.connection() as conn:
            return send(settle(conn, scope, arrival.attempt, arrival.provider_key, charge))
    except (OutcomeUnknown, NotTheOwner):
        # The claim stays open until the reconciler knows, or is settled already: the client is told what a retry is.
        return what_a_retry_is_told(scope, body)


def record(conn: psycopg.Connection, arrival: Arrival, scope: Scope, order: Order) -> None:
    conn.execute(
        "INSERT INTO payments (id, account, order_id, amount, currency) VALUES (%s, %s, %s, %s, %s)"
        # There already when the claim was lost and the request comes again.
        " ON CONFLICT (id) DO NOTHING",
        (arrival.provider_key, scope.tenant, order.order, order.amount, order.currency),
    )
    idempotency.checkpoint(conn, scope, arrival.attempt, "charging", asdict(order))


def what_a_retry_is_told(scope: Scope, body: bytes) -> Response:
    with pool.connection() as conn, conn.transaction(force_rollback=True):
        arrival = idempotency.claim(conn, scope, body)
    if arrival.outcome == "execute":  # released by a person: the claim is rolled back, for the client's retry to make
        return Response(status_code=503, headers={"retry-after": "1"})
    return as_it_is(arrival)


def as_it_is(arrival: Arrival) -> Response:
    return respond(arrival.response_code, arrival.response_headers, arrival.response_body)


def send(result: Result) -> Response:
    return respond(result.code, result.headers, result.body)


def respond(code: int, headers: list[list[str]] | None, body: bytes | None) -> Response:
    response = Response(body, code)
    for name, value in headers or []:
        response.headers.append(name, value)
    return response
