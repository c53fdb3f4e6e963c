"""The whole claim, complete and replay round through psycopg, in each way that it can send a parameter.

Connects by the environment (PGHOST, PGPORT, PGDATABASE, PGUSER) and prints a JSON object: what failed, by name.
"""

import json
import os
import traceback

import psycopg
from psycopg.types.json import Jsonb

TEXT = 'C:\\new\\x41 \\\\ "quoted" \'single\' %s $1 \u00e9\u4e16\U0001f600\r\n\t{"b":1,"a":1.0}'
BINARY = bytes(range(256))
HEADERS = [["Set-Cookie", 'a="1\\"; b'], ["Set-Cookie", "c, d"], ["X-Empty", ""]]

CLAIM = "SELECT * FROM idem_claim(%s, %s, %s, %s)"
CLAIM_BINARY = "SELECT * FROM idem_claim(%s, %s, %s, %b)"
COMPLETE = "SELECT idem_complete(%s, %s, %s, %s, %s, %s)"
COMPLETE_BINARY = "SELECT idem_complete(%s, %s, %s, %b, %b, %b)"


def stored(row):
    """The columns of the outcome that are replayed."""
    assert row[3] is None or type(row[3]) is bytes, type(row[3])
    return row[:4]


def expect(actual, expected):
    assert actual == expected, f"{actual!r} instead of {expected!r}"


def round_of(connection, endpoint, body, claim=CLAIM, complete=COMPLETE, headers=HEADERS):
    """Twice: the second time psycopg has prepared the statements on the server."""
    expected = body.encode() if isinstance(body, str) else body
    for n in range(2):
        scope = ("tenant", endpoint, f"key {n}")
        request = body if body is not None else b""
        with connection.transaction():
            expect(stored(connection.execute(claim, (*scope, request)).fetchone()), ("execute", None, None, None))
            response = (*scope, 201, body, headers and Jsonb(headers))
            expect(connection.execute(complete, response).fetchone(), (True,))
            expect(connection.execute(complete, response).fetchone(), (False,))
        replay = connection.execute(claim, (*scope, request)).fetchone()
        expect(stored(replay), ("replay", 201, headers, expected))
        changed = request + ("!" if isinstance(request, str) else b"!")
        expect(connection.execute(claim, (*scope, changed)).fetchone()[:2], ("key_reused", 422))


def text(connection):
    round_of(connection, "POST /text", TEXT)


def text_in_binary_format(connection):
    round_of(connection, "POST /text-b", TEXT, CLAIM_BINARY, COMPLETE_BINARY)


def binary(connection):
    round_of(connection, "POST /bytes", BINARY)


def binary_in_binary_format(connection):
    round_of(connection, "POST /bytes-b", BINARY, CLAIM_BINARY, COMPLETE_BINARY)


def bytearrays(connection):
    round_of(connection, "POST /bytearray", bytearray(BINARY))


def no_body_and_an_empty_one_differ(connection):
    round_of(connection, "POST /none", None)
    round_of(connection, "POST /empty", b"")
    round_of(connection, "POST /empty-text", "")


def no_headers(connection):
    round_of(connection, "POST /bare", TEXT, headers=None)


def text_and_bytes_are_the_same_request(connection):
    scope = ("tenant", "POST /same", "k")
    expect(connection.execute(CLAIM, (*scope, TEXT)).fetchone()[0], "execute")
    expect(connection.execute(CLAIM, (*scope, TEXT.encode())).fetchone()[0], "in_progress")


def autocommit(connection):
    """Each call commits by itself: right for an endpoint that is not registered as `transaction`."""
    connection.autocommit = True
    scope = ("tenant", "POST /autocommit", "k")
    expect(connection.execute(CLAIM, (*scope, TEXT)).fetchone()[0], "execute")
    expect(connection.execute(CLAIM, (*scope, TEXT)).fetchone()[:2], ("in_progress", 409))
    connection.execute(COMPLETE, (*scope, 200, TEXT, Jsonb(HEADERS)))
    expect(stored(connection.execute(CLAIM, (*scope, TEXT)).fetchone()), ("replay", 200, HEADERS, TEXT.encode()))


def pipeline(connection):
    """Claim and completion on their way before the first answer is read."""
    scope = ("tenant", "POST /pipeline", "k")
    with connection.pipeline(), connection.transaction():
        claimed = connection.execute(CLAIM, (*scope, BINARY))
        connection.execute(COMPLETE, (*scope, 201, BINARY, Jsonb(HEADERS)))
    expect(claimed.fetchone()[0], "execute")
    expect(stored(connection.execute(CLAIM, (*scope, BINARY)).fetchone()), ("replay", 201, HEADERS, BINARY))


def expect_error(connection, sqlstate, sql, parameters):
    try:
        connection.execute(sql, parameters)
    except psycopg.Error as error:
        expect(error.sqlstate, sqlstate)
        assert error.diag.message_detail and error.diag.message_hint
    else:
        raise AssertionError("no error")
    connection.rollback()


def errors_carry_their_sqlstate(connection):
    expect_error(connection, "ID001", COMPLETE, ("tenant", "POST /x", "none", 200, TEXT, None))


def bytes_that_were_cast_to_text_are_refused(connection):
    scope = ("tenant", "POST /cast", "k")
    for body in [b"", BINARY]:
        connection.execute(CLAIM, (*scope, "request"))
        cast = "SELECT idem_complete(%s, %s, %s, 200, %s::bytea::text)"
        expect_error(connection, "22023", cast, (*scope, body))


CASES = [
    text,
    text_in_binary_format,
    binary,
    binary_in_binary_format,
    bytearrays,
    no_body_and_an_empty_one_differ,
    no_headers,
    text_and_bytes_are_the_same_request,
    autocommit,
    pipeline,
    errors_carry_their_sqlstate,
    bytes_that_were_cast_to_text_are_refused,
]


def main():
    failed = {}
    # 0: every statement is prepared on the server from its first execution on. None: never, as a pooler needs it.
    prepare_threshold = None if "BEHIND_POOLER" in os.environ else 0
    for case in CASES:
        try:
            with psycopg.connect("", prepare_threshold=prepare_threshold) as connection:
                case(connection)
        except Exception:
            failed[case.__name__] = traceback.format_exc()
    print(json.dumps({"driver": f"psycopg {psycopg.__version__}", "passed": len(CASES) - len(failed), "failed": failed}))


main()
