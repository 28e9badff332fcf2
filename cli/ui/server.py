"""The page's server: uvicorn, with limits for clients that are slow, many, or never read.

1. A connection has `PATIENCE` seconds to send a request's headers, as long for its body, and as long to read more of an
   answer. The time in which the server works at an answer does not count: a commit may take minutes.
2. There are at most `CONNECTIONS` connections. One more ends the one whose client the server has been waiting for
   longest, so idle connections keep nobody out, whoever opened them.
3. Headers have at most `HEADERS` bytes; web.py limits bodies. Requests on one connection are answered one after the
   other, and no more is read or written than its buffers hold.
4. The first signal closes the connections that no answer is being made for, and lets an action end. The second one ends
   the process at once: it may wait for a target that never answers, and a commit can be interrupted anywhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any, Final

import typer
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Iterator
    from types import FrameType

    from starlette.types import ASGIApp

CONNECTIONS: Final = 64
"""A browser opens up to six."""
PATIENCE: Final = 10.0
"""Seconds for a client to send its request, or to read some of the answer."""
HEADERS: Final = 16 << 10
"""Bytes of a request's headers."""
GRACE: Final = 2.0
"""Seconds for a client to read its answer after the first signal."""
_LOOK_EVERY: Final = 1.0
"""Seconds between two looks at a connection's client."""


class PatientProtocol(H11Protocol):
    """A connection of a client who may be slow, but not forever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for the connection, and watch its client."""
        super().connection_made(transport)
        self.dropped = False  # or closed
        self._turn: Any = None  # the client's, and since when; None: the server's
        self._since = self.loop.time()
        self._look()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        self.dropped = True
        self._watch.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection, at the latest when its client has had `GRACE` seconds to read the answer."""
        super().shutdown()
        self.loop.call_later(GRACE, self._end)

    def drop(self) -> None:
        """Close the connection without waiting until its client reads what was sent."""
        self.dropped = True
        self.transport.abort()

    @property
    def since(self) -> float | None:
        """When the server began to wait for the client; None if it works at an answer."""
        return self._since if self._whose_turn() is not None else None

    def _look(self) -> None:  # (1)
        turn, now = self._whose_turn(), self.loop.time()
        if turn is None or turn != self._turn:
            self._turn, self._since = turn, now
        elif now - self._since >= PATIENCE:
            self.drop()
            return
        self._watch = self.loop.call_later(_LOOK_EVERY, self._look)

    def _whose_turn(self) -> Any:
        """Return what the client has to do, in a form that differs as soon as it has done it; None: nothing."""
        unread = self.transport.get_write_buffer_size()
        if unread:
            return "read", unread
        if self.cycle is None or self.cycle.response_complete:
            return "ask", self.cycle
        return ("send", self.cycle) if self.cycle.more_body else None

    def _end(self) -> None:  # (4)
        if self.dropped:
            return
        if self._whose_turn() is not None:
            self.drop()
        else:
            self.loop.call_later(_LOOK_EVERY, self._end)

    def _make_room(self) -> None:  # (2)
        others = [one for one in self.connections if isinstance(one, PatientProtocol) and not one.dropped]
        if len(others) <= CONNECTIONS:
            return
        waiting = [(one.since, one) for one in others if one.since is not None]
        min(waiting, key=lambda each: each[0])[1].drop()  # the new one waits for its client, if no other does


class PageServer(uvicorn.Server):
    """A server that ends at the second signal, whatever it waits for."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            lifespan="off",
            log_level="error",  # a warning for each malformed request would let anybody fill a log
            access_log=False,
            server_header=False,
            backlog=CONNECTIONS,  # as many are accepted at a time, before any of the others is dropped
            h11_max_incomplete_event_size=HEADERS,
        )
        super().__init__(config)
        self.stopped_by: int | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `stop`, until the process ends: uvicorn gives them back too early."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections, and wait for actions."""
        connections = [one for one in self.server_state.connections if isinstance(one, PatientProtocol)]
        if any(one.since is None for one in connections):
            typer.echo("Stopping when the action in progress has ended; Ctrl-C again stops at once", err=True)
        await super().shutdown(sockets)

    def stop(self, number: int, _: FrameType | None) -> None:
        """Stop at the first signal, and end the process at the second."""
        if self.stopped_by is not None:
            os._exit(128 + number)  # (4)
        self.stopped_by, self.should_exit = number, True


def serve_page(app: ASGIApp, listening: socket.socket) -> None:
    """Serve the page until a signal comes, and then end as a process that got it does."""
    server = PageServer(app)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.stop)
    server.run(sockets=[listening])
    if server.stopped_by == signal.SIGTERM:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    if server.stopped_by is not None:
        raise KeyboardInterrupt
