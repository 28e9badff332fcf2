"""The write-ahead-log sink. SCENARIOS 62 to 66."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.core import CheckpointConfig, FileBackend
from onceward.core.contract.names import Scope, file_name, parse_file_name
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Committable, Observation
from onceward.core.errors import DataLossError, RetryableSinkError, SinkError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.kit.pieces import PIECE_BYTES, size_of
from onceward.core.log import MemoryStore
from onceward.sinks import Guarantee
from onceward.sinks.folder_claims import IDENTITY
from onceward.sinks.segments import Marks
from onceward.sources import SequenceSource

from .engine_kit import RunningSum, numbers, pipeline
from .sink_kit import LOG, Crash, Mailbox, crash_at, prepared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.sinks.write_ahead import Delivery


SCOPE = Scope("p", "mail", LOG)


def test_rows_are_sent_in_order_after_the_decision_and_not_before(tmp_path: Path):
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(5), range(5, 8))
    assert sink.taken == []
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert [rows for _, rows in sink.taken] == [[0, 1], [2, 3], [4], [5, 6], [7]]
    assert sink.commit(committable).status is CommitStatus.ALREADY_COMMITTED
    assert sink.rows == list(range(8))


@pytest.mark.parametrize("remembers", [True, False])
def test_62_a_crash_between_delivery_and_mark_repeats_that_delivery_under_the_same_identity(
    tmp_path: Path, remembers: bool
):
    sink = Mailbox(tmp_path, remembers=remembers)
    committable = prepared(sink, range(6))
    crash_at(Step.SEND_AFTER, 2, sink, committable)
    assert sink.rows == [0, 1, 2, 3]
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert sink.rows == ([0, 1, 2, 3, 4, 5] if remembers else [0, 1, 2, 3, 2, 3, 4, 5])
    identities = [identity for identity, _ in sink.taken]
    if not remembers:
        assert identities[1] == identities[2]
    assert sink.guarantee is (Guarantee.EXACTLY_ONCE if remembers else Guarantee.AT_LEAST_ONCE)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_63_a_half_sent_batch_resumes_where_its_marks_end(tmp_path: Path, count: int):
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(6))
    crash_at(Step.MARK_AFTER, count, sink, committable)
    assert sink.rows == list(range(2 * count))
    sink.commit(committable)
    assert sink.rows == list(range(6))


def test_64_when_the_target_refuses_nothing_behind_is_sent_before(tmp_path: Path):
    sink = Mailbox(tmp_path)
    committables = [prepared(sink, range(4 * n, 4 * n + 4), epoch=n) for n in range(3)]
    sink.ledger().claim(SCOPE)
    sink.refuse_after = 3
    statuses = [outcome.status for outcome in sink.commit_many(committables)]
    assert statuses == [CommitStatus.COMMITTED, CommitStatus.RETRY_LATER, CommitStatus.RETRY_LATER]
    assert sink.rows == [0, 1, 2, 3, 4, 5]
    sink.refuse_after = None
    statuses = [outcome.status for outcome in sink.commit_many(committables)]
    assert statuses == [CommitStatus.ALREADY_COMMITTED, CommitStatus.COMMITTED, CommitStatus.COMMITTED]
    assert sink.rows == list(range(12))


def test_65_an_identity_is_the_same_in_every_process_and_never_anothers(tmp_path: Path):
    sink = Mailbox(tmp_path)
    committables = [prepared(sink, range(4), epoch=n) for n in range(2)]
    sink.ledger().claim(SCOPE)
    crash_at(Step.SEND_AFTER, 1, sink, committables[0])
    other = Mailbox(tmp_path, rows_per_send=3)  # what was written before keeps its own
    other.commit_many(committables)
    assert other.taken[0][0] == sink.taken[0][0]
    assert len({identity for identity, _ in other.taken}) == 4


def test_65_what_is_pinned_is_of_when_the_rows_were_written(tmp_path: Path):
    class Labelled(Mailbox):
        label = "old"

        def pinned(self) -> dict[str, Any]:
            return {"label": self.label}

        def send(self, rows: pa.RecordBatch, delivery: Delivery) -> None:
            tries.append((delivery.pinned["label"], delivery.first, delivery.again))
            super().send(rows, delivery)

    tries: list[tuple[str, int, bool]] = []
    sink = Labelled(tmp_path)
    committable = Committable.from_json(prepared(sink, range(6)).to_json())
    sink.label = "new"
    crash_at(Step.SEND_AFTER, 2, sink, committable)
    sink.commit(committable)
    assert tries == [("old", 0, False), ("old", 2, False), ("old", 2, True), ("old", 4, False)]


@pytest.mark.parametrize("torn", [b"4", b"4 0000", b"4 00000000"])
def test_66_a_torn_last_mark_is_cut_off(tmp_path: Path, torn: bytes):
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(6))
    crash_at(Step.MARK_AFTER, 1, sink, committable)
    with (tmp_path / f"{file_name(committable.transaction)}.marks").open("ab") as marks:
        marks.write(torn)
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert sink.rows == list(range(6))


def test_66_a_damaged_mark_in_the_middle_is_an_error(tmp_path: Path):
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(6))
    crash_at(Step.MARK_AFTER, 2, sink, committable)
    path = tmp_path / f"{file_name(committable.transaction)}.marks"
    path.write_bytes(path.read_bytes().replace(b"2 ", b"3 ", 1))
    outcome = sink.commit(committable)
    assert outcome.status is CommitStatus.UNKNOWN  # not lost: to write it all again would double what was delivered
    assert "damaged at byte 0" in outcome.detail
    assert sink.rows == [0, 1, 2, 3]


def test_66_a_damaged_segment_is_an_error_that_names_the_batch_and_sends_nothing(tmp_path: Path):
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(6), range(6, 9))
    path = tmp_path / f"{file_name(committable.transaction)}.segment"
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        outcome = sink.commit(committable)
        assert outcome.status is CommitStatus.LOST
        assert "damaged: batch" in outcome.detail
    path.write_bytes(whole[:-1])
    assert sink.commit(committable).status is CommitStatus.LOST
    assert sink.rows == []


def test_busy_is_never_taken_for_lost_or_gone(tmp_path: Path):
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(4))
    with (tmp_path / f"{file_name(committable.transaction)}.segment").open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert sink.commit(committable).status is CommitStatus.RETRY_LATER
        assert sink.abort(committable).status is AbortStatus.RETRY_LATER
    assert sink.rows == []
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert sink.rows == list(range(4))


def test_a_process_that_was_forked_while_rows_were_sent_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A child's copy of the descriptor shares the lock, as a duplicate does (flock(2))."""
    flock, copies = fcntl.flock, list[int]()

    def forks(handle: int, operation: int) -> None:
        flock(handle, operation)
        if operation & fcntl.LOCK_EX:
            copies.append(os.dup(handle))

    monkeypatch.setattr(fcntl, "flock", forks)
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(4))
    sink.refuse_after = 1
    assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    sink.refuse_after = None
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    for copy in copies:
        os.close(copy)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Files get no larger than so many bytes. Python ignores the signal that the system sends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_without_room_for_a_mark_lets_nothing_be_delivered(tmp_path: Path):
    """A delivery that cannot be recorded would be repeated in each attempt."""
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(20))
    with full_disk(40):
        for _ in range(3):
            assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert sink.rows == []
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert sink.rows == list(range(20))


@pytest.mark.parametrize("remembers", [True, False])
def test_a_delivery_that_cannot_be_recorded_is_tried_again_only_where_it_is_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remembers: bool
):
    def breaks(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    sink = Mailbox(tmp_path, remembers=remembers)
    committable = prepared(sink, range(4))
    with monkeypatch.context() as patch:
        patch.setattr(Marks, "put", breaks)
        if remembers:
            assert sink.commit(committable).status is CommitStatus.RETRY_LATER
        else:
            with pytest.raises(SinkError, match=r"were delivered, and this could not be recorded.*sink mail") as caught:
                sink.commit(committable)
            assert not caught.value.retryable
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert sink.rows == ([0, 1, 2, 3] if remembers else [0, 1, 0, 1, 2, 3])


def test_66_room_for_marks_is_no_mark_and_a_mark_torn_in_it_is_cut_off(tmp_path: Path):
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(6))
    crash_at(Step.MARK_AFTER, 1, sink, committable)
    path = tmp_path / f"{file_name(committable.transaction)}.marks"
    assert path.stat().st_size == 4096
    mark = path.read_bytes().rstrip(b"\0")
    path.write_bytes(mark + b"\0\0\0f3\n".ljust(4096 - len(mark), b"\0"))
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert sink.rows == list(range(6))


def test_what_a_full_disk_did_not_take_can_be_discarded(tmp_path: Path):
    sink = Mailbox(tmp_path)
    with full_disk(40), pytest.raises(RetryableSinkError, match=re.escape(str(tmp_path))):
        prepared(sink, range(4), range(2000))
    assert not list(tmp_path.iterdir())


def test_a_file_is_locked_as_nfs_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """NFSv4 refuses an exclusive lock through a descriptor that is not open for writing (flock(2), "NFS details")."""
    flock = fcntl.flock

    def on_nfs(handle: int, operation: int) -> None:
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", on_nfs)
    sink = Mailbox(tmp_path)
    first, second = prepared(sink, range(4)), prepared(sink, range(4))
    assert sink.commit(first).status is CommitStatus.COMMITTED
    assert sink.abort(second).status is AbortStatus.ABORTED


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_an_error_and_not_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    def refuses(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(4))
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuses)
        with pytest.raises(SinkError, match="cannot lock"):  # before the decision
            prepared(sink, range(4))
        for call in (sink.commit, sink.abort):
            with pytest.raises(SinkError, match=rf"cannot lock {tmp_path}.*{os.strerror(number)}") as caught:
                call(committable)
            assert not caught.value.retryable
    assert sink.commit(committable).status is CommitStatus.COMMITTED


def test_a_crash_after_the_last_row_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(4))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            sink.commit(committable)
    assert sink.commit(committable).status is CommitStatus.ALREADY_COMMITTED
    assert list(tmp_path.glob("*.segment")) == []
    assert sink.rows == list(range(4))


def test_an_error_of_sending_is_never_taken_for_a_segment_that_is_gone(tmp_path: Path):
    class NeedsACertificate(Mailbox):
        def send(self, rows: pa.RecordBatch, delivery: Delivery) -> None:  # noqa: ARG002 - signature
            raise FileNotFoundError("no such certificate")

    sink = NeedsACertificate(tmp_path)
    committable = prepared(sink, range(4))
    with pytest.raises(FileNotFoundError, match="certificate"):
        sink.commit(committable)
    assert Mailbox(tmp_path).commit(committable).status is CommitStatus.COMMITTED


def test_a_condition_of_the_target_is_never_settled_as_the_loss_of_a_transaction(tmp_path: Path):
    """Rule R: under `skip`, each epoch would be given up for as long as the condition lasts."""

    class Emptied(Mailbox):
        def send(self, rows: pa.RecordBatch, delivery: Delivery) -> None:  # noqa: ARG002 - signature
            raise DataLossError("the target was emptied")

    committable = prepared(Mailbox(tmp_path), range(4))
    for _ in range(2):
        with pytest.raises(DataLossError, match="was emptied"):
            Emptied(tmp_path).commit(committable)
    assert Mailbox(tmp_path).inspect_many([committable]) == [Observation.BEGUN]
    assert Mailbox(tmp_path).commit(committable).status is CommitStatus.COMMITTED


def test_of_completed_epochs_the_newest_proof_is_kept_and_nothing_else(tmp_path: Path):
    sink = Mailbox(tmp_path)
    for epoch in range(3):
        sink.commit(prepared(sink, range(4), epoch=epoch))
        sink.ledger().completed(SCOPE, epoch)
        kept = [path for path in tmp_path.iterdir() if path.name != IDENTITY]
        assert {path.suffix for path in kept} == {".marks", ".done"}
        assert {parse_file_name(path.stem).epoch for path in kept} == {epoch}  # type: ignore[union-attr]


@pytest.mark.parametrize("remembers", [True, False])
def test_in_a_pipeline_killed_between_delivery_and_mark_it_is_what_it_says(tmp_path: Path, remembers: bool):
    """The cell "write-ahead log" of the table of guarantees."""
    sink = Mailbox(tmp_path / "log", remembers=remembers, rows_per_send=50)
    p = pipeline(store=MemoryStore(), backend=FileBackend(tmp_path / "state"), checkpointing=CheckpointConfig())
    p.source(SequenceSource(numbers(1000)), uid="in").key_by("k").process(RunningSum(), uid="sum").sink(sink)
    left = [3]

    def hook(step: Step) -> None:
        left[0] -= step is Step.SEND_AFTER
        if step is Step.SEND_AFTER and left[0] == 0:
            raise ConnectionError("the process is gone")

    with hooked(hook):
        job = p.start()
        p.wait(30)
    assert job.restarts == 1
    expected = Counter(range(1000))
    duplicated = Counter(sink.rows) - expected
    assert expected - Counter(sink.rows) == Counter()
    assert bool(duplicated) is not remembers
    level, why = p.guarantee()
    assert level == ("exactly-once" if remembers else "at-least-once")
    assert remembers or "sink mail" in why[0]


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch([pa.array([1]), pa.array([2])], names=["n", "n"]),
        pa.record_batch({"day": pa.array([1], pa.date64())}),
        pa.record_batch({"at": pa.array([2**62], pa.timestamp("s"))}),
    ],
)
def test_rows_that_cannot_be_hashed_are_written_without_a_proof(tmp_path: Path, batch: pa.RecordBatch):
    committable = prepared(Mailbox(tmp_path), batch)
    assert (committable.rows, committable.proof) == (1, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.string_view()),
        pa.struct([("a", pa.dictionary(pa.int32(), pa.string()))]),
    ],
    ids=str,
)
def test_a_delivery_is_bounded_by_bytes_and_a_segment_by_its_rows(tmp_path: Path, kind: pa.DataType):
    """A slice of views or of a dictionary refers to all values: 8 of them would take 8 times as much of the disk."""

    class Recording(Mailbox):
        def send(self, rows: pa.RecordBatch, delivery: Delivery) -> None:
            sizes.append(size_of(rows))
            texts.update(zip(rows["n"].to_pylist(), rows["text"].to_pylist(), strict=True))
            super().send(rows, delivery)

    def value(text: str) -> Any:
        return [text] if pa.types.is_list(kind) else {"a": text} if pa.types.is_struct(kind) else text

    sizes: list[int] = []
    texts: dict[int, Any] = {}
    values = [value(f"{number:06}" * 50_000) for number in range(200)]  # 60 MB
    sink = Recording(tmp_path, rows_per_send=500, remembers=True)
    batch = pa.RecordBatch.from_pydict({"n": range(200), "text": pa.array(values, kind)})
    committable = prepared(sink, batch, [{"n": 200, "text": value("last")}])
    assert next(tmp_path.glob("*.segment")).stat().st_size < 70_000_000
    crash_at(Step.SEND_AFTER, 2, sink, committable)
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert sink.rows == list(range(201))
    assert [texts[number] for number in range(201)] == [*values, value("last")]
    assert max(sizes) <= PIECE_BYTES
