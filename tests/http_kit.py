"""A real HTTP server for tests: it takes deliveries, may honour keys, and misbehaves as it is told to."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator


class Request(NamedTuple):
    """What came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    client: tuple[str, int]

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        if self.headers["content-type"] == "application/x-ndjson":
            return [json.loads(line) for line in self.body.splitlines()]
        return json.loads(self.body)


class Plan(NamedTuple):
    """How to answer one request.

    Attributes:
        take: Whether to take the delivery.
        status: Of the answer; None: cut the connection.
        headers: Of the answer.
        body: Of the answer.
    """

    take: bool
    status: int | None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


TAKE = Plan(take=True, status=200)
LOSE_ANSWER = Plan(take=True, status=None)
DROP = Plan(take=False, status=None)


class Inbox:
    """The server, whose memory outlives its restarts."""

    def __init__(self, *, honors_keys: bool = True) -> None:
        self.honors_keys = honors_keys
        self.requests: list[Request] = []
        self.taken: list[Request] = []
        self.seen = 0
        self.plans: list[Plan] = []
        self.hang = threading.Event()
        self.hang.set()
        self.port = 0
        self.context: ssl.SSLContext | None = None
        self._lock = threading.Lock()

    @property
    def posts(self) -> list[Request]:
        return [request for request in self.requests if request.method == "POST"]

    @property
    def numbers(self) -> list[int]:
        """Return column n of all rows that were taken and are still there, in order."""
        return [row["n"] for row in self.rows]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return all rows that were taken and are still there, in order."""
        return [row for request in self.taken[self.seen :] for row in request.rows]

    def take_away(self) -> None:
        """Remove what was taken, but not its keys."""
        self.seen = len(self.taken)

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}/hook"

    def answer(self, request: Request) -> Plan:
        """Take note of a request, and say how it is answered."""
        with self._lock:
            self.requests.append(request)
            if request.method != "POST":
                return Plan(take=False, status=405)
            known = self.honors_keys and request.key in {taken.key for taken in self.taken}
            plan = self.plans.pop(0) if self.plans else TAKE
            if plan.take and not known:
                self.taken.append(request)
            return plan

    @contextmanager
    def up(self) -> Iterator[None]:
        """Serve, on the port of the first time."""
        server = _Server(("127.0.0.1", self.port), _Handler)
        server.inbox = self
        if self.context is not None:
            server.socket = self.context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            self.hang.set()
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    inbox: Inbox
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or does not trust us."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def _do(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # the client went away in the middle
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        plan = self.server.inbox.answer(Request(self.command, self.path, headers, body, self.client_address))
        self.server.inbox.hang.wait(30)
        if plan.status is None:
            self.close_connection = True
            return
        self.send_response(plan.status)
        for name, value in plan.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(plan.body)))
        self.end_headers()
        self.wfile.write(plan.body)

    do_POST = do_OPTIONS = do_HEAD = do_GET = _do  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Quiet."""
