"""What an executor does with its partition, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.connectors.spark.task import write_partition
from onceward.core.errors import SinkError
from onceward.core.transaction import WriteContext

if TYPE_CHECKING:
    from onceward.sinks import TwoPhaseCommitSink


class Scripted:
    """A sink whose pre-commit or roll-back may fail."""

    select = where = None

    def __init__(self, name: str, *, discards: bool = True) -> None:
        self.name = name
        self.discards = discards
        self.discarded = 0

    def begin(self, context: WriteContext) -> WriteContext:
        return context

    def write(self, _transaction: WriteContext, _batch: pa.RecordBatch) -> None:
        """It is written."""

    def pre_commit(self, _transaction: WriteContext) -> Any:
        raise SinkError(f"{self.name} does not prepare")

    def discard(self, _transaction: WriteContext) -> None:
        self.discarded += 1
        if not self.discards:
            raise SinkError(f"{self.name} is away")


def test_a_sink_that_cannot_roll_back_keeps_no_other_from_it_and_hides_no_error():
    """Rows of an open transaction hold locks: the retry of the same partition would wait for them in vain."""
    sinks: list[Any] = [Scripted("a", discards=False), Scripted("b")]
    contexts = [WriteContext(pipeline="p", sink=s.name, log="0a0b", writer=0, epoch=0, subtask=0) for s in sinks]
    given: list[TwoPhaseCommitSink[Any]] = sinks
    batches = [pa.RecordBatch.from_pydict({"n": [1]})]
    with pytest.raises(SinkError, match="a does not prepare") as caught:
        write_partition(given, contexts, batches)
    assert [sink.discarded for sink in sinks] == [1, 1]
    assert caught.value.__notes__ == ["besides, sink a did not roll back: a is away"]
