"""The simulator's database answers as a real PostgreSQL does: the same random sequences of a sink's calls on both."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Barrier
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from onceward.connectors.database.engines import close_idle
from onceward.connectors.database.sink import PostgresSink
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import CommitStatus, WriteContext

from .differential_kit import Player, compared, play_simulated, script
from .simulator_kit import simulator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.postgres

SCHEMA = pa.schema([("id", pa.int64())])
SCOPE = Scope("orders", "out", "0a0b0c0d")
PHASES = ("begin", "prepare")
CALLS = {"write": 12, "commit": 6, "abort": 3, "sweep": 1, "list": 2, "commit_by_hand": 1, "roll_back_by_hand": 1}


class Contexts:
    """Contexts of one writer, whose transactions are one epoch each."""

    def context(self, number: int) -> WriteContext:
        pipeline, sink, log = SCOPE
        return WriteContext(pipeline=pipeline, sink=sink, log=log, generation=0, epoch=number, subtask=0)

    def wait_for_write(self, transaction: Any) -> None:
        """The answer comes with pre_commit."""


class RealSink(Contexts):
    """The real sink on a real server."""

    def __init__(self, dsn: str, way: str, *, unique: bool) -> None:
        self.way = way
        self.look = psycopg.connect(dsn, autocommit=True)
        self.look.execute(f"CREATE TABLE rows (id bigint {'PRIMARY KEY' if unique else ''})")
        self.sink = PostgresSink("out", dsn=dsn, table="rows", commit=way, lock_timeout=0.2)
        self.sink.validate(SCHEMA)
        self.sink.ledger().claim(SCOPE)

    def batch(self, numbers: tuple[int, ...]) -> pa.RecordBatch:
        return pa.record_batch({"id": pa.array(numbers, pa.int64())})

    def outside(self, kind: str, _number: int, name: str) -> str:
        verb = "COMMIT" if kind == "commit_by_hand" else "ROLLBACK"
        try:
            self.look.execute(sql.SQL(f"{verb} PREPARED {{}}").format(sql.Literal(name)))
        except psycopg.errors.UndefinedObject:
            return "42704"
        return "done"

    def visible(self) -> list[int]:
        return [row[0] for row in self.look.execute("SELECT id FROM rows ORDER BY id")]


class SimulatedSink(Contexts):
    """The simulated sink on the simulated database."""

    def __init__(self, world: Any, audit: Any, way: str, *, unique: bool) -> None:
        self.audit = audit
        self.database = simulator.database.Database(world, audit)
        sinks = simulator.database_sinks
        kind = sinks.PreparedSink if way == "prepared" else sinks.StagedSink
        self.sink = kind("out", world, audit, self.database, unique=unique)

    def patches(self) -> AbstractContextManager[None]:
        return nullcontext()

    def batch(self, numbers: tuple[int, ...]) -> list[int]:
        return list(numbers)

    def outside(self, kind: str, _number: int, name: str) -> str:
        return self.database.end(name, commit=kind == "commit_by_hand")

    def visible(self) -> list[int]:
        return sorted(self.audit.rows)


@pytest.fixture
def closing_dsn(dsn: str) -> Iterator[str]:
    yield dsn
    close_idle()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("way", "unique"), [("prepared", False), ("prepared", True), ("staging", False)])
def test_the_sink_answers_alike_on_both_databases(closing_dsn: str, way: str, unique: bool, seed: int):
    played = script(seed, CALLS, phases=PHASES)
    side = RealSink(closing_dsn, way, unique=unique)
    try:
        real = Player(side, played).play()
    finally:
        side.look.close()

    def simulated(world: Any, audit: Any) -> SimulatedSink:
        return SimulatedSink(world, audit, way, unique=unique)

    expected = play_simulated(simulated, played)
    assert real == expected, compared(real, expected)


@pytest.mark.parametrize("way", ["prepared", "staging"])
def test_two_committers_at_once_get_answers_that_the_simulator_gives(closing_dsn: str, way: str):
    """Busy, absent and in the ledger, or this call's own: never "lost" (of 1,500 losers of a race, 1,466 were busy)."""
    side = RealSink(closing_dsn, way, unique=False)
    races, winners = 20, 2
    transactions = [side.sink.begin(side.context(number)) for number in range(races)]
    committables = []
    for number, transaction in enumerate(transactions):
        side.sink.write(transaction, side.batch((number,)))
        committables.append(side.sink.pre_commit(transaction))
    barrier = Barrier(winners)

    def commit_all(_: int) -> list[CommitStatus]:
        barrier.wait(30)
        return [side.sink.commit(committable).status for committable in committables]

    with ThreadPoolExecutor(winners) as pool:
        answers = list(zip(*pool.map(commit_all, range(winners)), strict=True))
    allowed = {CommitStatus.COMMITTED, CommitStatus.ALREADY_COMMITTED, CommitStatus.RETRY_LATER}
    assert {status for pair in answers for status in pair} <= allowed
    assert all(pair.count(CommitStatus.COMMITTED) <= 1 for pair in answers)
    assert side.visible() == list(range(races))
    side.look.close()
