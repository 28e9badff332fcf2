"""What FileSink and WriteAheadLogSink share: transactions, claims and proofs in a folder."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onceward import FileSink
from onceward.core.checkpoint import Backoff, CommitPolicy, Coordinator, OnLost
from onceward.core.contract.names import NOTHING, Scope, file_name
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Committable, Observation, Progress
from onceward.core.errors import CommitPendingError, DataLossError, EpochConflictError, SinkError
from onceward.core.kit.crash_points import Step
from onceward.core.log import EpochInput, MemoryStore
from onceward.sinks.folder_claims import IDENTITY

from .core_fakes import acknowledgement
from .sink_kit import LOG, Mailbox, context, crash_at, prepared

SCOPE = Scope("p", "out", LOG)
OTHER = SCOPE._replace(log="ffff0000")


class Files(FileSink):
    """Its reader takes files away as soon as they are there."""

    def __init__(self, folder: Path, name: str = "out") -> None:
        super().__init__(name, folder, format="jsonl")

    def take(self) -> None:
        for path in Path(self.folder).glob("*.jsonl"):
            path.unlink()

    def cut_off(self, committable: Committable) -> None:
        """Begin a commit, and die before its file is moved."""
        folder = self._place / file_name(committable.transaction)
        folder.rename(f"{folder}.commit")


class Mail(Mailbox):
    def __init__(self, folder: Path, name: str = "out") -> None:
        super().__init__(folder, name=name)

    def take(self) -> None:
        pass

    def cut_off(self, committable: Committable) -> None:
        crash_at(Step.SEND_BEFORE, 1, self, committable)


Make = Callable[..., Any]
"""Files or Mail: a folder, and if wanted a name."""


@pytest.fixture(params=[Files, Mail])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


@pytest.fixture
def sink(make: Make, tmp_path: Path) -> Any:
    return make(tmp_path)


def names(found: Any) -> list[str]:
    return [committable.transaction for committable in found]


def test_what_is_aborted_is_gone_and_what_is_committed_or_begun_is_not(sink: Any):
    first, second, third = (prepared(sink, range(4)) for _ in range(3))
    assert sink.abort(first).status is AbortStatus.ABORTED
    assert sink.commit(first).status is CommitStatus.LOST
    sink.commit(second)
    sink.cut_off(third)
    assert sink.abort(second).status is AbortStatus.COMMITTED
    assert sink.abort(third).status is AbortStatus.COMMITTED
    assert sink.commit(third).status is CommitStatus.COMMITTED


def test_what_lingers_is_found_by_its_exact_name(sink: Any):
    committable, begun = prepared(sink, range(4)), sink.begin(context("out", 2))
    sink.write(begun, pa.RecordBatch.from_pydict({"n": [1]}))
    assert set(names(sink.lingering(SCOPE))) == {committable.transaction, begun.name}
    for other in (Scope("p", "ou", LOG), Scope("p-eu", "out", LOG)):
        assert list(sink.lingering(other)) == []
    sink.discard(begun)
    [found] = sink.lingering(SCOPE)
    assert found.transaction == committable.transaction
    assert sink.abort(found).status is AbortStatus.ABORTED
    assert list(sink.lingering(SCOPE)) == []
    assert [path.name for path in Path(sink.folder).rglob("*") if path.is_file()] == [IDENTITY]


def test_what_a_renamed_sink_left_behind_is_listed_and_aborted(make: Make, tmp_path: Path):
    old, new = make(tmp_path, "old"), make(tmp_path)
    left, mine, begun = prepared(old, range(4)), prepared(new, range(4)), prepared(old, range(4), epoch=2)
    old.cut_off(begun)
    assert set(names(new.lingering_elsewhere("p", LOG))) == {left.transaction, mine.transaction}
    for other in (("p-eu", LOG), ("p", OTHER.log)):
        assert list(new.lingering_elsewhere(*other)) == []
    [found] = [c for c in new.lingering_elsewhere("p", LOG) if c.sink == "old"]
    assert new.abort(found).status is AbortStatus.ABORTED
    assert names(new.lingering_elsewhere("p", LOG)) == [mine.transaction]


def test_a_folder_that_knows_the_name_from_another_log_refuses_it(sink: Any):
    sink.ledger().check_claim(SCOPE, NOTHING)
    assert list(Path(sink.folder).iterdir()) == [], "a check writes nothing"
    sink.ledger().claim(SCOPE)
    sink.ledger().claim(SCOPE)
    [claim] = sink._place.iterdir()
    assert (claim.name, claim.read_text()) == (".p~out.claim", LOG)
    for refused in (lambda: sink.ledger().check_claim(OTHER, NOTHING), lambda: sink.ledger().claim(OTHER)):
        with pytest.raises(EpochConflictError, match=f"from decision log {LOG}"):
            refused()
    sink.ledger().release(OTHER)
    sink.ledger().claim(OTHER)
    sink.ledger().release(OTHER)
    with pytest.raises(EpochConflictError):
        sink.ledger().check_claim(SCOPE, NOTHING)


def test_a_folder_that_knows_the_pipeline_from_another_log_refuses_it_under_any_sinks_name(sink: Any):
    """A fresh checkpoint and a renamed sink must not write the input a second time."""
    sink.ledger().claim(SCOPE)
    renamed = OTHER._replace(sink="renamed")
    for refused in (lambda: sink.ledger().check_claim(renamed, NOTHING), lambda: sink.ledger().claim(renamed)):
        with pytest.raises(EpochConflictError, match=rf"this pipeline \(its sink out\) from decision log {LOG}"):
            refused()
    sink.ledger().check_claim(SCOPE._replace(sink="added"), NOTHING)
    for other in ("p.2", "p-2", "p_2"):
        sink.ledger().check_claim(renamed._replace(pipeline=other), NOTHING)
    sink.ledger().release(renamed)
    sink.ledger().claim(renamed)
    with pytest.raises(EpochConflictError):
        sink.ledger().check_claim(SCOPE, NOTHING)


def test_a_folder_remembers_how_far_the_log_had_come(sink: Any):
    """Also beyond epochs without rows for it, and whatever becomes of the data."""
    for epoch in (3, 4):
        sink.commit(prepared(sink, range(2), epoch=epoch))
        sink.ledger().completed(SCOPE, epoch)
    sink.ledger().completed(SCOPE, 9)
    sink.take()
    for newest in (Progress(1, 4), Progress(1, 9), Progress(2, 0)):
        sink.ledger().check_claim(SCOPE, newest)
    for newest in (NOTHING, Progress(1, 3), Progress(0, 9)):
        with pytest.raises(EpochConflictError, match=r"outdated copy: .* holds epoch 4"):
            sink.ledger().check_claim(SCOPE, newest)
    sink.ledger().check_claim(SCOPE._replace(sink="ou"), NOTHING)
    sink.ledger().release(SCOPE)
    sink.ledger().check_claim(SCOPE, NOTHING)


def test_a_commit_that_has_begun_is_decided_known_and_left_by_housekeeping(sink: Any):
    cut_off, newer = prepared(sink, range(6)), prepared(sink, range(2), epoch=2)
    sink.cut_off(cut_off)
    with pytest.raises(EpochConflictError, match="outdated copy"):
        sink.ledger().check_claim(SCOPE, NOTHING)
    sink.commit(newer)
    sink.ledger().completed(SCOPE, 3)
    assert sink.commit(cut_off).status is CommitStatus.COMMITTED


def test_a_rewind_forgets_how_far_the_log_had_come_and_no_proof(sink: Any):
    """One of the transactions may be decided and not completed: it is finished before the rewind is."""
    done, cut_off = prepared(sink, range(6), epoch=2), prepared(sink, range(6, 12), epoch=2)
    sink.commit(done)
    sink.take()
    sink.cut_off(cut_off)
    sink.ledger().release(SCOPE)
    sink.ledger().check_claim(SCOPE, NOTHING)
    sink.ledger().completed(SCOPE, 1)
    assert sink.commit(done).status is CommitStatus.ALREADY_COMMITTED
    assert sink.commit(cut_off).status is CommitStatus.COMMITTED
    never = prepared(sink, range(2), epoch=2)
    sink.cut_off(never)
    sink.ledger().release(SCOPE)
    sink.ledger().completed(SCOPE, 3)
    assert names(sink.lingering(SCOPE)) == [never.transaction]
    assert sink.abort(never).status is AbortStatus.ABORTED
    assert [path.name for path in sink._place.iterdir() if path.suffix != ".jsonl"] == [IDENTITY]


def test_what_may_have_been_committed_long_ago_is_not_called_lost(sink: Any):
    old, new = (prepared(sink, range(2), epoch=epoch) for epoch in (1, 2))
    for committable in (old, new):
        sink.commit(committable)
    assert sink.inspect_many([old, new]) == [Observation.COMMITTED] * 2
    sink.ledger().completed(SCOPE, 2)
    sink.take()
    assert sink.commit(old).status is CommitStatus.UNKNOWN
    assert sink.commit(new).status is CommitStatus.ALREADY_COMMITTED
    assert sink.inspect_many([old, new]) == [Observation.UNKNOWN, Observation.COMMITTED]


CALLS: dict[str, Callable[[Any, Any, Committable], Any]] = {
    "begin": lambda sink, _, __: sink.begin(context("out", 3)),
    "pre_commit": lambda sink, pending, _: sink.pre_commit(pending),
    "lingering": lambda sink, _, __: sink.lingering(SCOPE),
    "completed": lambda sink, _, __: sink.ledger().completed(SCOPE, 1),
    "inspect": lambda sink, _, sent: sink.inspect_many([sent]),
    "check_claim": lambda sink, _, __: sink.ledger().check_claim(SCOPE, NOTHING),
    "claim": lambda sink, _, __: sink.ledger().claim(SCOPE),
}


@pytest.mark.parametrize("call", CALLS)
def test_errors_of_the_file_system_are_ours_and_name_the_folder(sink: Any, monkeypatch: pytest.MonkeyPatch, call: str):
    sent, waiting, pending = prepared(sink, range(4)), prepared(sink, range(4)), sink.begin(context("out", 2))
    sink.write(pending, pa.RecordBatch.from_pydict({"n": [1]}))
    sink.commit(sent)

    def stale(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        for name in ("exists", "is_dir", "mkdir", "iterdir", "stat", "read_bytes"):
            patch.setattr(Path, name, stale)
        patch.setattr(os, "fsync", stale)
        with pytest.raises(SinkError, match=r"Stale file handle.*sink out") as caught:
            CALLS[call](sink, pending, sent)
        assert sink.folder in str(caught.value)
        if isinstance(sink, Mail):
            patch.setattr(pa.ipc, "new_stream", stale)
            with pytest.raises(SinkError, match=r"Stale file handle.*sink out"):
                sink.write(pending, pa.RecordBatch.from_pydict({"n": [1]}))
        for committable in (sent, waiting):
            assert sink.commit(committable).status is CommitStatus.RETRY_LATER
            assert sink.abort(committable).status is AbortStatus.RETRY_LATER
    assert sink.commit(waiting).status is CommitStatus.COMMITTED
    sink.discard(pending)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_found_before_the_decision(
    sink: Any, monkeypatch: pytest.MonkeyPatch, number: int
):
    """FAT has none, and neither have many mounted buckets."""

    def refuses(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuses)
    with pytest.raises(SinkError, match=r"hard links.*onceward doctor --place files:FOLDER.*sink out") as caught:
        prepared(sink, range(4))
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.EACCES, "give this process the permission"), (errno.EROFS, "mount it for writing")]
)
def test_a_missing_permission_does_not_pass_by_itself(
    sink: Any, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
):
    """A commit stops at once, and the next start continues."""
    committable = prepared(sink, range(4))

    def refuses(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        for name in ("rename", "open"):
            patch.setattr(Path, name, refuses)
        with pytest.raises(SinkError, match=rf"{advice}.*sink out") as caught:
            sink.commit(committable)
    assert not caught.value.retryable
    assert sink.commit(committable).status is CommitStatus.COMMITTED


def about(epoch: int, digest: str = "d") -> EpochInput:
    return EpochInput(query="q", digest=f"{digest}{epoch}", start=[epoch], end=[epoch + 1])


@pytest.mark.parametrize("choice", ["skip", "rewind"])
def test_a_folder_that_is_gone_with_several_transactions_that_wait_says_how_to_go_on(
    make: Make, tmp_path: Path, choice: str
):
    """Nothing of them can be looked at any more: the message must still name the step that helps, and it does."""
    store, folder, sink = MemoryStore(), tmp_path / "out", make(tmp_path / "out")

    def opened(on_lost: OnLost = OnLost.REPLAY, **opening: Any) -> Coordinator:
        quick = CommitPolicy(on_lost=on_lost, commits=Backoff(attempts=0))
        coordinator = Coordinator("p", store, [sink], quick, heals=True)
        coordinator.open(query="q", **opening)
        return coordinator

    def prepare(coordinator: Coordinator, epoch: int) -> list[Committable]:
        made = []
        for subtask in range(2):
            transaction = sink.begin(coordinator.context(sink.name, epoch, subtask=subtask))
            sink.write(transaction, pa.RecordBatch.from_pylist([{"n": subtask}]))
            made.append(sink.pre_commit(transaction))
        return made

    def run(coordinator: Coordinator, epoch: int, digest: str = "d") -> None:
        coordinator.admit(epoch, about(epoch, digest))
        acks = [
            acknowledgement(one, epoch=epoch, subtask=subtask, sinks=(sink.name,))
            for subtask, one in enumerate(prepare(coordinator, epoch))
        ]
        coordinator.commit(epoch, acks, about(epoch, digest))

    def back() -> Coordinator:
        return opened(rewind="the disk broke", first_epoch=1, epoch_input=about(1, "new"))

    coordinator = opened()
    run(coordinator, 0)
    coordinator.writer.decide(1, prepare(coordinator, 1), sinks=[sink.name], epoch_input=about(1))
    shutil.rmtree(folder)
    with pytest.raises(DataLossError, match=r"rewind=.*on_lost='skip'"):
        opened()
    go_on = back if choice == "rewind" else lambda: opened(OnLost.SKIP)
    with pytest.raises(CommitPendingError, match="is it the right one, and mounted") as told:
        go_on()
    [(identity, path)] = re.findall(r"write (\w+) into (\S+),", str(told.value))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(identity)
    if choice == "rewind":
        run(go_on(), 1, "new")
    else:
        run(go_on(), 2)
    opened()
