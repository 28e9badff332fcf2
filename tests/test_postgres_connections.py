"""Connections, without a server: a child of a fork never touches its parent's."""

from __future__ import annotations

import os

from onceward.connectors.database.postgres import connections


def test_a_forked_child_starts_with_no_connections_and_keeps_its_parents_alive() -> None:
    parents = connections._own_pool()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        own = connections._own_pool()
        kept = any(pool is parents for pool in connections._inherited)
        os.write(writer, b"1" if own is not parents and not own.idle and kept else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1"
    os.close(reader)
    os.close(writer)
    assert connections._own_pool() is parents
