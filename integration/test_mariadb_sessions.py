"""MariaDB answers OK to XA COMMIT, and commits nothing, while the session that prepared is just ending."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
import pymysql
import pytest

from onceward import SqlAlchemySink
from onceward.connectors.database.mariadb import Xid
from onceward.connectors.database.target import PREPARED
from onceward.core.contract.names import Scope, TransactionName
from onceward.core.contract.transaction import CommitStatus, Committable, WriteContext

from .mariadb_kit import PROGRAM, running_mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .mariadb_kit import MariaDb

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="MariaDB's server is not installed")
EPOCHS = 400
RESET_CONNECTION = 0x1F
"""The command COM_RESET_CONNECTION."""


@pytest.fixture
def mariadb() -> Iterator[MariaDb]:
    with running_mariadb() as running:
        yield running


def connected(server: MariaDb) -> pymysql.connections.Connection:
    return pymysql.connect(host="127.0.0.1", port=server.port, user="root", database="matrix", autocommit=True)


def context(epoch: int) -> WriteContext:
    return WriteContext(pipeline="p", sink="s", log="0123abcd", generation=1, attempt=0, epoch=epoch, subtask=0)


def sink_into(server: MariaDb) -> SqlAlchemySink:
    with closing(connected(server)) as connection:
        connection.cursor().execute("CREATE TABLE words (id bigint PRIMARY KEY) ENGINE=InnoDB")
    sink = SqlAlchemySink("s", url=server.url, table="words", commit="prepared", lock_timeout=1)
    sink.validate(pa.schema([("id", pa.int64())]))
    return sink


def test_what_commits_right_after_a_transaction_was_prepared_commits_it(mariadb: MariaDb) -> None:
    sink = sink_into(mariadb)
    with closing(connected(mariadb)) as connection, connection.cursor() as cursor:
        for epoch in range(EPOCHS):
            writing = sink.begin(context(epoch))
            sink.write(writing, pa.record_batch({"id": [epoch]}))
            xid = Xid.of(sink.pre_commit(writing).read_name())
            cursor.execute(f"XA COMMIT {xid}")  # no session holds it any more, so the server knows it
            assert cursor.execute("SELECT id FROM words WHERE id = %s", (epoch,)) == 1, epoch


def test_a_commit_counts_only_if_the_ledger_has_its_row(mariadb: MariaDb) -> None:
    """A session that prepared, and is not ended but reset, makes the server answer OK and commit nothing."""
    sink = sink_into(mariadb)
    name = TransactionName(Scope("p", "s", "0123abcd"), 1, 7, 0, 0, "00000000")
    with closing(connected(mariadb)) as connection, connection.cursor() as cursor:
        cursor.execute(f"XA START {Xid.of(name)}")
        cursor.execute("INSERT INTO words VALUES (1)")
        cursor.execute(f"XA END {Xid.of(name)}")
        cursor.execute(f"XA PREPARE {Xid.of(name)}")
        connection._execute_command(RESET_CONNECTION, b"")
        connection._read_ok_packet()
        outcome = sink.commit(Committable.named(PREPARED, name, rows=1))
    assert outcome.status is CommitStatus.RETRY_LATER
    assert "Restart the server" in outcome.detail
