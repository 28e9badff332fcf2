"""A replica that is promoted with REPLICAOF NO ONE after the primary died: what it lacks, and what is found out.

The sink's URL is that of a proxy, which leads to the primary and then to the replica, as an address that follows it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.connectors.redis.sink import RedisSink
from onceward.core.checkpoint import CommitPolicy, Coordinator, OnLost
from onceward.core.checkpoint.numbering import CHECKPOINTS
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.errors import DataLossError
from onceward.core.log import EpochInput, MemoryStore
from onceward.testing.proxy import Proxy

from .kafka_kit import eventually
from .redis_kit import Valkey, running_valkey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.core.contract.transaction import Committable

ROWS = 6


class Pair:
    """A primary, its replica, and a pipeline that writes into whichever is the primary."""

    def __init__(self, folder: Path, primary: Valkey, replica: Valkey, **settings: Any) -> None:
        self.primary, self.replica = primary, replica
        self.proxy = Proxy("127.0.0.1", primary.port)
        self.folder, self.settings, self.store = folder, settings, MemoryStore()
        client = replica.client()
        eventually(lambda: client.info("replication")["master_link_status"] == "up", "the replica follows")

    def open(self, **policy: Any) -> None:
        url = f"redis://{self.proxy.address}/0"
        self.sink = RedisSink("cache", self.folder, url=url, key="rows", rows_per_send=2, timeout=5, **self.settings)
        commits = CommitPolicy(**{"commit_timeout": 15, **policy})
        self.coordinator = Coordinator("p", self.store, [self.sink], commits, numbering=CHECKPOINTS)
        self.coordinator.open()

    def write(self, epoch: int) -> Committable:
        written = SubtaskEpoch(self.sink, self.coordinator.context("cache", epoch, subtask=0))
        batch = pa.RecordBatch.from_pydict({"n": list(range(epoch * ROWS, (epoch + 1) * ROWS))})
        self.sink.validate(batch.schema)
        written.write(batch)
        committable = written.pre_commit()
        assert committable is not None
        return committable

    def run(self, epoch: int, committable: Committable | None = None) -> None:
        committable = committable or self.write(epoch)
        about = EpochInput(query="q", end={"rows": epoch})
        self.coordinator.admit(epoch, about)
        ack = Acknowledgement(epoch=epoch, subtask=0, attempt=0, sinks=("cache",), committables=(committable,))
        self.coordinator.commit(epoch, [ack], about)

    def caught_up(self) -> None:
        ours, theirs = self.primary.client(), self.replica.client()

        def same() -> bool:
            return bool(
                ours.info("replication")["master_repl_offset"] == theirs.info("replication")["slave_repl_offset"]
            )

        eventually(same, "the replica has what the primary has")

    def stop_replication(self) -> None:
        """Let the replica lag behind: it receives nothing more."""
        self.replica.client().replicaof("127.0.0.1", 1)

    def fail_over(self) -> None:
        self.primary.kill()
        self.replica.client().replicaof("NO", "ONE")
        self.proxy.refuse()
        self.proxy.lead_to("127.0.0.1", self.replica.port)
        self.proxy.mend()

    def numbers(self) -> list[int]:
        return [int(fields["n"]) for _, fields in self.replica.client().xrange("rows")]


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    settings = getattr(request, "param", {})
    with running_valkey() as primary, running_valkey(replicaof=f"127.0.0.1 {primary.port}") as replica:
        made = Pair(tmp_path, primary, replica, **settings)
        try:
            yield made
        finally:
            made.proxy.close()


def once(epochs: int) -> list[int]:
    return list(range(epochs * ROWS))


def test_a_replica_that_has_all_goes_on_where_the_primary_was(pair: Pair) -> None:
    """In mid-run, and at a start; an epoch that was prepared before is committed after it."""
    pair.open()
    pair.run(0)
    committable = pair.write(1)
    pair.caught_up()
    pair.fail_over()
    pair.run(1, committable)
    pair.run(2)
    pair.open()
    pair.run(3)
    assert pair.numbers() == once(4)


@pytest.mark.parametrize("pair", [{"replicas": 1}], indirect=True)
def test_with_a_replica_that_must_have_it_nothing_acknowledged_is_lost(pair: Pair) -> None:
    """The pipeline waits for the replica; no epoch completes while that is away."""
    pair.open()
    for epoch in range(3):
        pair.run(epoch)
    pair.fail_over()
    assert pair.numbers() == once(3)


@pytest.mark.parametrize("lost", ["an epoch", "the first epoch", "two epochs"])
@pytest.mark.parametrize("found", ["in mid-run", "at the start"])
def test_acknowledged_writes_that_the_replica_lacks_stop_the_pipeline(pair: Pair, lost: str, found: str) -> None:
    """With asynchronous replication: a DataLossError before anything more is decided, and skip goes on behind it."""
    pair.open()
    kept = 0 if lost == "the first epoch" else 2
    for epoch in range(kept):
        pair.run(epoch)
    pair.caught_up()
    pair.stop_replication()
    gone = 2 if lost == "two epochs" else 1
    for epoch in range(kept, kept + gone):
        pair.run(epoch)
    pair.fail_over()
    assert pair.numbers() == once(kept)
    decided = pair.store.list_keys()
    again = pair.open if found == "at the start" else partial(pair.run, kept + gone)
    with pytest.raises(DataLossError, match=r"had acknowledged 6|knows nothing of this pipeline"):
        again()
    assert len([key for key in pair.store.list_keys() if key not in decided]) == (found == "at the start"), "START"
    assert pair.numbers() == once(kept)
    with pytest.raises(DataLossError):
        pair.open()
    pair.open(on_lost=OnLost.SKIP)
    pair.run(kept + gone)
    assert pair.numbers() == [*once(kept), *range((kept + gone) * ROWS, (kept + gone + 1) * ROWS)]


def test_a_part_of_an_epoch_that_the_replica_lacks_stops_the_pipeline(pair: Pair) -> None:
    """Of three deliveries one arrived."""
    pair.open()
    pair.run(0)
    pair.caught_up()
    committable = pair.write(1)
    real = pair.sink.send
    sent = []

    def send(rows: pa.RecordBatch, delivery: Any) -> None:
        if len(sent) == 1:
            pair.caught_up()
            pair.stop_replication()
        real(rows, delivery)
        sent.append(delivery)

    pair.sink.send = send
    pair.run(1, committable)
    assert len(sent) == ROWS // 2
    pair.fail_over()
    assert pair.numbers() == list(range(ROWS + 2))
    with pytest.raises(DataLossError, match=r"has 2 rows of .* and had acknowledged 6"):
        pair.run(2)
    with pytest.raises(DataLossError, match=r"has 2 rows of .* and had acknowledged 6"):
        pair.open()
