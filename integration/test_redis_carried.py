"""RedisSink and rows that a checkpoint carried over, on a real Valkey: no false loss, and no missed one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.connectors.redis.script import marker_key
from onceward.connectors.redis.sink import RedisSink
from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.numbering import CHECKPOINTS
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import Acknowledgement, Committable
from onceward.core.errors import DataLossError
from onceward.core.log import EpochInput, MemoryStore

from .redis_kit import Valkey, running_valkey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server


class Run:
    """Checkpoints of a pipeline with one sink, some of which are given up after it has prepared."""

    def __init__(self, folder: Path, valkey: Valkey) -> None:
        self.folder, self.valkey, self.store = folder, valkey, MemoryStore()
        self.checkpoint = 0
        self.open()

    def open(self) -> None:
        self.waiting: list[Committable] = []
        self.sink = RedisSink("cache", self.folder, url=self.valkey.url, key="rows", rows_per_send=2)
        self.coordinator = Coordinator("p", self.store, [self.sink], numbering=CHECKPOINTS)
        self.coordinator.open()

    def prepare(self, *values: int) -> None:
        written = SubtaskEpoch(self.sink, self.coordinator.context("cache", self.checkpoint, subtask=0))
        batch = pa.RecordBatch.from_pydict({"n": list(values)})
        self.sink.validate(batch.schema)
        written.write(batch)
        committable = written.pre_commit()
        assert committable is not None
        self.waiting.append(committable)

    def give_up(self) -> None:
        self.checkpoint += 1

    def complete(self) -> None:
        about = EpochInput(query="q", end={"rows": self.checkpoint})
        self.coordinator.admit(self.checkpoint, about)
        ack = Acknowledgement(
            epoch=self.checkpoint, subtask=0, attempt=0, sinks=("cache",), committables=tuple(self.waiting)
        )
        self.coordinator.commit(self.checkpoint, [ack], about)
        self.checkpoint, self.waiting = self.checkpoint + 1, []

    @property
    def client(self) -> Any:
        return self.valkey.client()

    @property
    def marker(self) -> Any:
        return marker_key(Scope("p", "cache", self.coordinator.writer.token.log)).decode()


def test_what_is_carried_over_is_no_loss(tmp_path: Path, valkey: Valkey):
    run = Run(tmp_path, valkey)
    run.prepare(0, 1)
    run.complete()
    run.prepare(2, 3)
    run.give_up()
    run.complete()
    run.complete()
    run.complete()
    run.open()
    run.prepare(4)
    run.complete()
    assert [int(fields["n"]) for _, fields in run.client.xrange("rows")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("idle", [0, 1, 2], ids=lambda count: f"{count} checkpoints without rows")
@pytest.mark.parametrize("carried", [False, True], ids=["decided at once", "carried over"])
def test_acknowledged_rows_that_the_server_lost_are_found_out(tmp_path: Path, valkey: Valkey, carried: bool, idle: int):
    """As after a start from an older file: of four rows two are there, and the housekeeping since is undone."""
    run = Run(tmp_path, valkey)
    run.prepare(0, 1)
    run.complete()
    before = run.client.hgetall(run.marker)
    run.prepare(2, 3, 4, 5)
    [lost] = run.waiting
    if carried:
        run.give_up()
    run.complete()
    for _ in range(idle):
        run.complete()
    run.client.delete(run.marker)
    run.client.hset(run.marker, mapping={**before, lost.transaction: "2"})
    run.client.xtrim("rows", maxlen=4, approximate=False)
    with pytest.raises(DataLossError, match=r"has 2 rows .* had acknowledged 4"):
        run.open()
