"""What differs in psycopg2: it writes parameters into the statement, and reads bytea as memoryview.

Connects by the environment (PGHOST, PGPORT, PGDATABASE, PGUSER) and prints a JSON object: what failed, by name.
"""

import json
import traceback

import psycopg2

TEXT = 'C:\\new\\x41 \\\\ "quoted" \'single\' $1 \u00e9\u4e16\U0001f600\r\n\t{"b":1,"a":1.0}'
BINARY = bytes(range(256))
HEADERS = [["Set-Cookie", 'a="1\\"; b'], ["Set-Cookie", "c, d"], ["X-Empty", ""]]


def round_of(connection, endpoint, sql_type, body):
    scope = ("tenant", endpoint, "k")
    claim = f"SELECT * FROM idem_claim(%s::text, %s::text, %s::text, %s::{sql_type})"
    complete = f"SELECT idem_complete(%s::text, %s::text, %s::text, %s::int, %s::{sql_type}, %s::jsonb)"
    request = "" if body is None else body
    with connection, connection.cursor() as cursor:
        cursor.execute(claim, (*scope, request))
        assert cursor.fetchone()[0] == "execute"
        cursor.execute(complete, (*scope, 201, body, json.dumps(HEADERS)))
        assert cursor.fetchone() == (True,)
    with connection, connection.cursor() as cursor:
        cursor.execute(claim, (*scope, request))
        outcome, code, headers, stored = cursor.fetchone()[:4]
    assert (outcome, code, headers) == ("replay", 201, HEADERS), (outcome, code, headers)
    assert stored is None or type(stored) is memoryview, type(stored)
    expected = body.encode() if isinstance(body, str) else body
    assert (None if stored is None else bytes(stored)) == expected, stored


CASES = {
    "text": lambda connection: round_of(connection, "POST /text", "text", TEXT),
    "bytes": lambda connection: round_of(connection, "POST /bytes", "bytea", BINARY),
    "an_empty_body": lambda connection: round_of(connection, "POST /empty", "bytea", b""),
    "no_body": lambda connection: round_of(connection, "POST /none", "bytea", None),
}


def main():
    failed = {}
    for name, case in CASES.items():
        connection = psycopg2.connect("")
        try:
            case(connection)
        except Exception:
            failed[name] = traceback.format_exc()
        finally:
            connection.close()
    print(json.dumps({"driver": f"psycopg2 {psycopg2.__version__}", "passed": len(CASES) - len(failed), "failed": failed}))


main()
