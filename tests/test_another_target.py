"""A pipeline whose sink is pointed at another target: docs/how-to/upgrade.md says how, and what happens otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from onceward import FileSink, SqlAlchemySink
from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.errors import DataLossError
from onceward.core.log import DirectoryStore, EpochInput

from .core_fakes import policy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onceward.sinks import TwoPhaseCommitSink


def database(place: Path, name: str) -> SqlAlchemySink:
    url = f"sqlite:///{place}.db"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE IF NOT EXISTS words (n bigint)"))
    engine.dispose()
    return SqlAlchemySink(name, url=url, table="words")


def folder(place: Path, name: str) -> FileSink:
    return FileSink(name, place, format="jsonl")


def run(log: Path, sink: TwoPhaseCommitSink[Any], epoch: int) -> None:
    coordinator = Coordinator("orders", DirectoryStore(log), [sink], policy())
    about = EpochInput(query="q", digest=str(epoch), start=None, end=[str(epoch)])
    coordinator.open(first_epoch=epoch, query="q", epoch_input=about)
    sink.validate(pa.schema({"n": pa.int64()}))
    coordinator.admit(epoch, about)
    subtask = SubtaskEpoch(sink, coordinator.context(sink.name, epoch, subtask=0))
    subtask.write(pa.RecordBatch.from_pydict({"n": [epoch]}))
    committable = subtask.pre_commit()
    assert committable is not None
    ack = Acknowledgement(epoch=epoch, subtask=0, attempt=0, sinks=(sink.name,), committables=(committable,))
    coordinator.commit(epoch, [ack], about)


@pytest.mark.parametrize("make", [database, folder])
def test_another_target_needs_another_name_of_the_sink(
    tmp_path: Path, make: Callable[[Path, str], TwoPhaseCommitSink[Any]]
) -> None:
    log, old, new = tmp_path / "log", tmp_path / "old", tmp_path / "new"
    run(log, make(old, "words"), 0)
    with pytest.raises(DataLossError, match="to begin with a new target, give the sink another name"):
        run(log, make(new, "words"), 1)
    for epoch in (1, 2):
        run(log, make(new, "words-2"), epoch)
