"""A MariaDB replica that is promoted while transactions are prepared, decided, committed or not there yet.

Each case ends the primary for good, by SIGKILL, and goes on at the replica, with the same log and another URL.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pymysql.cursors import DictCursor

from onceward.connectors.database.engines import close_idle
from onceward.connectors.database.sink import SqlAlchemySink
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import CommitStatus, Committable, WriteContext

from .kafka_kit import eventually
from .mariadb_kit import PROGRAM, MariaDb, running_mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="MariaDB's server is not installed")]

BINLOG = ("--log-bin=log", "--log-slave-updates", "--gtid-strict-mode", "--binlog-format=ROW")
SEMI_SYNCHRONOUS = ("--rpl-semi-sync-master-wait-point=AFTER_SYNC", "--rpl-semi-sync-master-timeout=90000000")
SCOPE = Scope("orders", "words", "0123abcd")
WAYS = ("prepared", "staging", "upsert")


class Pair:
    """A primary and its replica."""

    def __init__(self, primary: MariaDb, replica: MariaDb) -> None:
        self.primary, self.replica = primary, replica
        self.alive = primary
        self.run(replica, "RESET MASTER")
        source = f"MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}, MASTER_USER='root'"
        self.run(replica, "SET GLOBAL gtid_slave_pos = ''", f"CHANGE MASTER TO {source}, MASTER_USE_GTID=slave_pos")
        self.run(replica, "DROP DATABASE matrix", "RESET MASTER", "SET GLOBAL rpl_semi_sync_slave_enabled = 1")
        self.run(replica, "START SLAVE", "SET GLOBAL read_only = 1")
        self.run(primary, "SET GLOBAL rpl_semi_sync_master_enabled = 1")
        self.wait_semi_synchronous()
        self.run(primary, "CREATE TABLE matrix.words (id bigint PRIMARY KEY, word varchar(20) CHARACTER SET utf8mb4)")

    def wait_semi_synchronous(self) -> None:
        status = "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'"
        eventually(lambda: self.run(self.primary, status)[0]["Value"] == "1", "the replica acknowledges")

    def run(self, server: MariaDb, *statements: str) -> list[dict[str, Any]]:
        with closing(server._connected()) as connection, connection.cursor(DictCursor) as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def cut(self) -> None:
        """Replicate nothing more, and do not wait for that: asynchronous from now on."""
        self.run(self.replica, "STOP SLAVE")
        self.run(self.primary, "SET GLOBAL rpl_semi_sync_master_enabled = 0")

    def fail_over(self) -> None:
        """Kill the primary, and promote the replica when it has applied what it has received."""
        self.primary.kill()
        close_idle()

        def applied() -> bool:
            (status,) = self.run(self.replica, "SHOW SLAVE STATUS")
            assert status["Last_SQL_Errno"] == 0, status["Last_SQL_Error"]
            return status["Gtid_IO_Pos"] == self.run(self.replica, "SELECT @@gtid_slave_pos AS at")[0]["at"]

        self.run(self.replica, "STOP SLAVE IO_THREAD")
        eventually(applied, "the replica has applied what it has received")
        self.run(self.replica, "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0")
        self.alive = self.replica

    def rows(self) -> list[int]:
        return [row["id"] for row in self.run(self.alive, "SELECT id FROM matrix.words ORDER BY id")]

    def prepared(self) -> int:
        return len(self.run(self.alive, "XA RECOVER"))

    def sink(self, way: str) -> SqlAlchemySink:
        how: dict[str, Any] = {"key": ["id"]} if way == "upsert" else {"commit": way}
        return SqlAlchemySink("words", url=self.alive.url, table="words", lock_timeout=5, answer_within=20, **how)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with (
        running_mariadb("--server-id=1", *BINLOG, *SEMI_SYNCHRONOUS) as primary,
        running_mariadb("--server-id=2", *BINLOG) as replica,
    ):
        yield Pair(primary, replica)
        close_idle()


def write(sink: SqlAlchemySink, epoch: int) -> list[Committable]:
    """Prepare an epoch of two subtasks with three rows each."""
    committables = []
    for subtask in range(2):
        context = WriteContext(
            pipeline="orders", sink="words", log=SCOPE.log, generation=3, attempt=0, epoch=epoch, subtask=subtask
        )
        first = 6 * epoch + 3 * subtask
        rows = pa.record_batch({"id": range(first, first + 3), "word": ["a", "b", "c"]})
        sink.validate(rows.schema)
        transaction = sink.begin(context)
        sink.write(transaction, rows)
        committables.append(sink.pre_commit(transaction))
    return committables


def statuses(sink: SqlAlchemySink, committables: list[Committable]) -> set[CommitStatus]:
    """Commit as a coordinator does, until no answer is "later"."""
    until = time.monotonic() + 30
    while True:
        answers = {outcome.status for outcome in sink.commit_many(committables)}
        if CommitStatus.RETRY_LATER not in answers:
            return answers
        assert time.monotonic() < until, answers
        time.sleep(0.05)


@pytest.mark.parametrize("way", WAYS)
def test_what_was_prepared_before_the_failover_is_committed_or_aborted_by_handle_after_it(pair: Pair, way: str) -> None:
    sink = pair.sink(way)
    committed = write(sink, 0)
    sink.ledger().claim(SCOPE)
    assert statuses(sink, committed) == {CommitStatus.COMMITTED}
    decided, undecided = write(sink, 1), write(sink, 2)
    pair.fail_over()
    assert pair.prepared() == (4 if way == "prepared" else 0)
    sink = pair.sink(way)
    sink.validate(pa.schema([("id", pa.int64()), ("word", pa.string())]))
    assert statuses(sink, committed) == {CommitStatus.ALREADY_COMMITTED}
    assert pair.rows() == list(range(6))
    assert statuses(sink, decided) == {CommitStatus.COMMITTED}
    assert {c.transaction for c in sink.lingering(SCOPE)} == {c.transaction for c in undecided}
    for committable in undecided:
        sink.abort(committable)
    assert list(sink.lingering(SCOPE)) == []
    assert pair.prepared() == 0
    assert pair.rows() == list(range(12))
    assert statuses(sink, write(sink, 2)) == {CommitStatus.COMMITTED}
    assert pair.rows() == list(range(18))


@pytest.mark.parametrize("way", WAYS)
def test_what_the_replica_has_not_is_lost_loudly_and_never_taken_for_committed(pair: Pair, way: str) -> None:
    """With asynchronous replication; whether it was only prepared, or committed too."""
    sink = pair.sink(way)
    first = write(sink, 0)
    sink.ledger().claim(SCOPE)
    assert statuses(sink, first) == {CommitStatus.COMMITTED}
    half = write(sink, 1)
    pair.cut()
    gone = write(sink, 2)
    assert statuses(sink, half) == {CommitStatus.COMMITTED}, "at the primary"
    assert statuses(sink, gone) == {CommitStatus.COMMITTED}
    pair.fail_over()
    sink = pair.sink(way)
    assert pair.rows() == list(range(6))
    assert statuses(sink, half) == {CommitStatus.COMMITTED}, "the replica had it prepared"
    assert statuses(sink, gone) == {CommitStatus.LOST}
    assert pair.rows() == list(range(12))
