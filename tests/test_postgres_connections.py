"""Connections, without a server: a child of a fork never touches its parent's; what is not silent is not lent."""

from __future__ import annotations

import os
import socket

from onceward.connectors.database.engines import engine_of
from onceward.connectors.database.postgres.dialect import _silent
from onceward.connectors.database.postgres_sink import PostgresSink
from onceward.core.kit import processwide


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
