"""Connections, without a server: never a parent's, never one that is not silent, never a hang."""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from onceward.connectors.database.engines import close_idle, engine_of
from onceward.connectors.database.postgres import connection as session
from onceward.connectors.database.postgres.connection import Answering, limited
from onceward.connectors.database.postgres.dialect import _silent
from onceward.connectors.database.sink import PostgresSink, SqlAlchemySink
from onceward.core.contract.transaction import WriteContext
from onceward.core.errors import RetryableSinkError
from onceward.core.kit import processwide

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = pa.schema([("id", pa.int64())])
CONTEXT = WriteContext(pipeline="p", sink="s", log="0123abcd", generation=1, epoch=1, subtask=0)


class SilentServer:
    """Welcomes clients in PostgreSQL's protocol, and answers nothing after that."""

    def __init__(self) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self._links: list[socket.socket] = []
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._door.accept()
            except OSError:
                return
            self._links.append(link)
            self._welcome(link)

    @staticmethod
    def _welcome(link: socket.socket) -> None:
        while True:
            (length,) = struct.unpack("!I", link.recv(4))
            (code,) = struct.unpack("!I", link.recv(length - 4)[:4])
            if code not in (80877103, 80877104):  # asks for TLS or GSSAPI
                break
            link.sendall(b"N")
        settings = [b"server_version\x0018.0\0", b"client_encoding\0UTF8\0", b"standard_conforming_strings\0on\0"]
        parts = [(b"R", struct.pack("!I", 0)), *((b"S", text) for text in settings)]
        parts += [(b"K", struct.pack("!II", 1, 2)), (b"Z", b"I")]
        link.sendall(b"".join(kind + struct.pack("!I", len(body) + 4) + body for kind, body in parts))

    def close(self) -> None:
        for part in (self._door, *self._links):
            part.close()


@pytest.fixture
def silent() -> Iterator[SilentServer]:
    server = SilentServer()
    yield server
    close_idle()
    server.close()


def test_the_first_question_to_a_silent_server_has_its_time_limit(silent: SilentServer) -> None:
    url = f"postgresql://u@127.0.0.1:{silent.port}/db"
    sink = SqlAlchemySink("s", url=url, table="t", commit="prepared", answer_within=0.3, lock_timeout=0.1)
    for ask in (lambda: sink.validate(SCHEMA), lambda: sink.begin(CONTEXT)):
        begun = time.monotonic()
        with pytest.raises(RetryableSinkError):
            ask()
        assert time.monotonic() - begun < 5


def test_a_limit_ends_the_wait_for_an_answer_and_what_it_did_not_reach_goes_on(silent: SilentServer) -> None:
    """Of two limits the innermost counts; after both there is none."""
    first, second = (Answering.connect(f"postgresql://u@127.0.0.1:{silent.port}/db") for _ in range(2))
    with first, second, limited(60):
        begun = time.monotonic()
        with limited(0.2), pytest.raises(psycopg.OperationalError, match="did not answer in time"):
            first.execute("SELECT 1")
        assert 0.2 <= time.monotonic() - begun < 5
        assert (first.closed, second.closed) == (True, False)
        with limited(-1), pytest.raises(psycopg.OperationalError, match="did not answer in time"):
            second.execute("SELECT 1")
    assert session._limit.until == math.inf


def test_a_forked_child_starts_with_no_connections_and_keeps_its_parents_alive() -> None:
    target = PostgresSink("words", dsn="postgresql://writer@127.0.0.1:1/shop", table="words").target
    parents = engine_of(target)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        kept = any(parents in inherited.values() for inherited in processwide._inherited)
        os.write(writer, b"1" if engine_of(target) is not parents and kept else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1"
    os.close(reader)
    os.close(writer)
    assert engine_of(target) is parents


def test_a_connection_on_which_something_came_unasked_is_not_lent_again() -> None:
    near, far = socket.socketpair()
    with near, far:
        assert _silent(near.fileno())
        far.sendall(b"x")
        assert not _silent(near.fileno())
        near.recv(1)
        far.close()
        assert not _silent(near.fileno())
