"""What is carried over: transactions of a checkpoint that was given up, which a later decision commits.

A target's ledger books them under their own epoch, and no start may take that for a loss; whatever a target really
lost is still noticed. Real sinks, and the coordinator as the embedded engine drives it.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onceward import FileSink, SqlAlchemySink
from onceward.connectors.database.engines import engine_of
from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.numbering import CHECKPOINTS
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.names import Reached
from onceward.core.contract.transaction import Acknowledgement, Committable
from onceward.core.errors import DataLossError
from onceward.core.log import EpochInput, MemoryStore, read
from onceward.core.log.entries import Decide, decode_entry, encode, key_of
from onceward.core.log.sink_progress import newest_commits

from .core_fakes import policy
from .sink_kit import Mailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.sinks import TwoPhaseCommitSink

KINDS: dict[str, Callable[[Path], TwoPhaseCommitSink[Any]]] = {
    "database": lambda at: SqlAlchemySink("a", url=f"sqlite:///{at}/a.db", table="a", create_table=True),
    "files": lambda at: FileSink("a", at / "files", format="jsonl"),
    "write-ahead log": lambda at: Mailbox(at / "mail", remembers=True, name="a"),
}


class Carrying:
    """A sink with two subtasks, whose checkpoints are given up now and then.

    Args:
        kind: Of the sink.
        folder: Of its target.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        folder.mkdir(exist_ok=True)
        self.store = MemoryStore()
        self.checkpoint = 0
        self.older: dict[int, dict[str, Reached]] = {}
        """By position of a DECIDE: what an older version wrote as `reached`."""
        self.open()

    def open(self) -> None:
        self.waiting: list[Committable] = []
        """Prepared, and not decided."""
        self.sink = KINDS[self.kind](self.folder)
        self.coordinator = Coordinator("p", self.store, [self.sink], policy(), numbering=CHECKPOINTS)
        self.coordinator.open()

    def prepare(self, subtask: int) -> None:
        """Write a row before the next barrier."""
        written = SubtaskEpoch(self.sink, self.coordinator.context("a", self.checkpoint, subtask=subtask))
        batch = pa.RecordBatch.from_pydict({"n": [self.checkpoint]})
        self.sink.validate(batch.schema)
        written.write(batch)
        committable = written.pre_commit()
        assert committable is not None
        self.waiting.append(committable)

    def give_up(self) -> None:
        """A checkpoint is declined, expires or is subsumed, after the subtasks have prepared."""
        self.checkpoint += 1

    def complete(self) -> None:
        """Decide a checkpoint, with all that was prepared since the one before."""
        before = self._as_older_version()
        about = EpochInput(query="q", end={"rows": self.checkpoint})
        self.coordinator.admit(self.checkpoint, about)
        ack = Acknowledgement(
            epoch=self.checkpoint, subtask=0, attempt=0, sinks=("a",), committables=tuple(self.waiting)
        )
        self.coordinator.commit(self.checkpoint, [ack], about)
        self.older[self.coordinator.view.decisions[-1][0].position] = before
        self.checkpoint += 1
        self.waiting = []

    def _as_older_version(self) -> dict[str, Reached]:
        """Return the newest commits, under the epochs of their decisions."""
        decision = self.coordinator.view.newest
        if decision is None:
            return {}
        own = [c.generation for c in decision.committables]
        now = {"a": Reached(max(own), decision.epoch, len(own))} if own else {}
        return {**self.older[decision.position], **now}

    def written_by_an_older_version(self) -> None:
        """Let the log be what an older version would have left."""
        for key in list(self.store.list_keys()):
            entry = decode_entry(self.store.get(key) or b"", int(key))
            if isinstance(entry, Decide):
                older = msgspec.structs.replace(entry, own_epochs=False, reached=self.older[entry.position])
                self.store.delete(key)
                self.store.put_if_absent(key_of(entry.position), encode(older))

    def close(self) -> None:
        if isinstance(self.sink, SqlAlchemySink):
            engine_of(self.sink.target).dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


STEPS = st.lists(
    st.tuples(st.sampled_from(["complete", "complete", "give up", "restart", "older"]), st.integers(0, 3)), max_size=14
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(steps=STEPS)
@example(steps=[("complete", 1), ("give up", 1), ("complete", 0), ("complete", 0), ("complete", 0), ("restart", 0)])
@example(steps=[("give up", 3), ("complete", 1), ("complete", 0), ("complete", 0), ("older", 0), ("complete", 0)])
def test_what_is_carried_over_is_never_taken_for_a_loss(kind: str, steps: list[tuple[str, int]]):
    with tempfile.TemporaryDirectory() as folder, Carrying(kind, Path(folder)) as run:
        for what, subtasks in steps:
            if what in {"restart", "older"}:
                if what == "older":
                    run.written_by_an_older_version()
                run.close()
                run.open()
                continue
            for subtask in range(2):
                if subtasks & (1 << subtask):
                    run.prepare(subtask)
            run.complete() if what == "complete" else run.give_up()


@pytest.mark.parametrize("older", [False, True], ids=["new log", "log of an older version"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_of_what_was_carried_over_is_noticed(kind: str, older: bool, tmp_path: Path):
    with Carrying(kind, tmp_path / "now") as run:
        run.prepare(0)
        run.complete()
        shutil.copytree(tmp_path / "now", tmp_path / "copy")
        run.prepare(0)
        run.give_up()
        run.complete()  # with what was carried over
        run.complete()
        run.complete()
        if older:
            run.written_by_an_older_version()
        run.close()
        shutil.rmtree(tmp_path / "now")
        shutil.copytree(tmp_path / "copy", tmp_path / "now")
        with pytest.raises(DataLossError, match=r"ends at epoch 0\. Epoch 1 is missing"):
            run.open()


def committable(sink: str, generation: int, epoch: int, subtask: int = 0) -> Committable:
    return Committable(
        kind="k", pipeline="p", sink=sink, log="x", generation=generation, epoch=epoch, subtask=subtask,
        transaction=f"{sink}:{generation}:{epoch}:{subtask}",
    )  # fmt: skip


def test_the_newest_commit_is_counted_as_a_ledger_counts_it():
    """By its own epoch, whichever generation wrote it: some transactions of an epoch may have been healed."""
    committed = [committable("a", 3, 4), committable("a", 3, 5), committable("a", 8, 5, 1), committable("b", 3, 2)]
    assert newest_commits(committed) == {"a": Reached(8, 5, 2), "b": Reached(3, 2, 1)}
    assert newest_commits([]) == {}


def test_a_log_whose_proofs_no_longer_tell_the_epoch_still_shows_that_a_target_is_empty(tmp_path: Path):
    with Carrying("database", tmp_path) as run:
        run.prepare(0)
        run.complete()
        run.complete()
        run.written_by_an_older_version()
        newest = read(run.store).newest
        assert newest is not None
        without = msgspec.structs.replace(newest, proofs=None)
        run.store.delete(key_of(newest.position))
        run.store.put_if_absent(key_of(newest.position), encode(without))
        run.close()
        run.open()
        run.complete()
        assert run.coordinator.view.reached == {"a": Reached(0, -1, 0)}
        with closing(sqlite3.connect(tmp_path / "a.db")) as database:
            database.execute("DELETE FROM onceward_ledger")
            database.commit()
        run.close()
        with pytest.raises(DataLossError, match=r"is empty\. An epoch is missing"):
            run.open()
