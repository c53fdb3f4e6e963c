"""A small payment provider: what a real one does about idempotency keys, and all that can go wrong on the way to it.

    POST /charges                 charges the card of {"reference", "amount", "currency", "card"};
                                  needs an Idempotency-Key
    GET  /charges/{key}           what became of the charge with this key
    GET  /charges                 all charges

The card says what goes wrong, the first time that a key is sent:

    card_ok            nothing: 201
    card_declined      declined, each time: 402
    card_slow          takes a while (--slow seconds), then charges
    card_drop_before   the connection is dropped before charging
    card_drop_after    the connection is dropped after charging
    card_error_before  500 before charging
    card_error_after   500 after charging
"""

import argparse
import json
import sqlite3
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Ledger:
    """The charges, on disk. A card is charged in the moment in which its row is committed."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS charges (key TEXT PRIMARY KEY, request TEXT NOT NULL, charge TEXT NOT NULL)"
        )
        self._lock = threading.Lock()
        self._in_progress: set[str] = set()
        self._seen: set[str] = set()

    def begin(self, key: str, request: str) -> tuple[int, dict] | None:
        """The answer to a key that was sent before; None for the one request that is to be worked on."""
        with self._lock:
            if row := self._db.execute("SELECT request, charge FROM charges WHERE key = ?", (key,)).fetchone():
                if row[0] != request:
                    return 422, {"error": "the key was used with another request"}
                charge = json.loads(row[1])
                return (201 if charge["status"] == "succeeded" else 402), charge
            if key in self._in_progress:
                return 409, {"error": "a request with this key is in progress"}
            self._in_progress.add(key)
            return None

    def is_first(self, key: str) -> bool:
        with self._lock:
            first = key not in self._seen
            self._seen.add(key)
            return first

    def charge(self, key: str, request: str, status: str) -> dict:
        charge = {"id": f"ch_{uuid.uuid4().hex}", "key": key, "status": status, **json.loads(request)}
        with self._lock:
            self._db.execute("INSERT INTO charges VALUES (?, ?, ?)", (key, request, json.dumps(charge)))
        return charge

    def end(self, key: str) -> None:
        with self._lock:
            self._in_progress.discard(key)

    def find(self, key: str) -> dict | None:
        with self._lock:
            if row := self._db.execute("SELECT charge FROM charges WHERE key = ?", (key,)).fetchone():
                return json.loads(row[0])
            return {"id": None, "key": key, "status": "in_progress"} if key in self._in_progress else None

    def all(self) -> list[dict]:
        with self._lock:
            return [json.loads(row[0]) for row in self._db.execute("SELECT charge FROM charges ORDER BY rowid")]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ledger: Ledger
    slow: float

    def do_GET(self) -> None:
        if self.path == "/charges":
            return self.answer(200, self.ledger.all())
        found = self.ledger.find(self.path.removeprefix("/charges/"))
        self.answer(200, found) if found else self.answer(404, {"error": "no such charge"})

    def do_POST(self) -> None:
        request = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        key = self.headers.get("Idempotency-Key")
        if self.path != "/charges" or not key:
            return self.answer(400, {"error": "POST /charges with an Idempotency-Key"})
        if stored := self.ledger.begin(key, request):
            return self.answer(*stored)
        try:
            self.work(key, request)
        finally:
            self.ledger.end(key)

    def work(self, key: str, request: str) -> None:
        card = json.loads(request)["card"]
        fault = card.removeprefix("card_") if self.ledger.is_first(key) else None
        if fault == "slow":
            time.sleep(self.slow)
        if fault == "drop_before":
            return self.drop()
        if fault == "error_before":
            return self.answer(500, {"error": "out of order"})
        charge = self.ledger.charge(key, request, "declined" if card == "card_declined" else "succeeded")
        if fault == "drop_after":
            return self.drop()
        if fault == "error_after":
            return self.answer(500, {"error": "out of order"})
        self.answer(201 if charge["status"] == "succeeded" else 402, charge)

    def drop(self) -> None:
        """Closes the connection without a word."""
        self.close_connection = True

    def answer(self, code: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        try:
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # the client has gone; what was charged is charged

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    options = argparse.ArgumentParser(description="A small payment provider.")
    options.add_argument("--port", type=int, default=8081)
    options.add_argument("--ledger", default="charges.sqlite")
    options.add_argument("--slow", type=float, default=15, help="seconds that card_slow takes")
    given = options.parse_args()
    Handler.ledger, Handler.slow = Ledger(given.ledger), given.slow
    ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
