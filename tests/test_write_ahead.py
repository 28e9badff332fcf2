"""The write-ahead-log sink. SCENARIOS 62 to 66."""

from __future__ import annotations

import fcntl
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.core import CheckpointConfig, FileBackend
from onceward.core.errors import EpochConflictError, RetryableSinkError
from onceward.core.log.memory import MemoryStore
from onceward.core.names import Scope
from onceward.core.steps import Step, hooked
from onceward.core.transaction import AbortStatus, CommitStatus, Committable, WriteContext
from onceward.sinks import Guarantee, WriteAheadLogSink
from onceward.sinks.folders import IDENTITY
from onceward.sources import SequenceSource

from .engine_kit import RunningSum, numbers, pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from onceward.sinks.write_ahead import Attempt, Identity


class Crash(BaseException):
    """The process ends here."""


class Mailbox(WriteAheadLogSink):
    """A target that takes deliveries, and may refuse them."""

    def __init__(self, directory: Path, *, remembers: bool = False, rows_per_send: int = 2) -> None:
        super().__init__("mail", directory, rows_per_send=rows_per_send)
        self.remembers = remembers
        self.taken: list[tuple[str, list[int]]] = []
        self.refuse_after: int | None = None

    def send(self, rows: pa.RecordBatch, identity: Identity) -> None:
        if self.refuse_after is not None and len(self.taken) >= self.refuse_after:
            raise RetryableSinkError("the target is full")
        if not (self.remembers and str(identity) in dict(self.taken)):
            self.taken.append((str(identity), rows["n"].to_pylist()))

    @property
    def rows(self) -> list[int]:
        return [n for _, rows in self.taken for n in rows]

    def __deepcopy__(self, memo: Any) -> Mailbox:
        return self


def context(epoch: int = 1, subtask: int = 0, log: str = "0123abcd") -> WriteContext:
    return WriteContext(pipeline="p", sink="mail", log=log, writer=1, epoch=epoch, subtask=subtask)


def prepared(sink: Mailbox, *batches: range, epoch: int = 1) -> Committable:
    segment = sink.begin(context(epoch))
    for batch in batches:
        sink.write(segment, pa.RecordBatch.from_pydict({"n": list(batch)}))
    return sink.pre_commit(segment)


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


def crash_at(step: Step, count: int, sink: Mailbox, committable: Committable) -> None:
    left = [count]

    def hook(reached: Step) -> None:
        left[0] -= reached is step
        if left[0] == 0:
            raise Crash

    with hooked(hook), pytest.raises(Crash):
        sink.commit(committable)


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

        def deliver(self, rows: pa.RecordBatch, attempt: Attempt) -> None:
            tries.append((attempt.pinned["label"], attempt.identity.first, attempt.again))
            super().deliver(rows, attempt)

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
    with (tmp_path / f"{committable.transaction}.marks").open("ab") as marks:
        marks.write(torn)
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert sink.rows == list(range(6))


def test_66_a_damaged_mark_in_the_middle_is_an_error(tmp_path: Path):
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(6))
    crash_at(Step.MARK_AFTER, 2, sink, committable)
    path = tmp_path / f"{committable.transaction}.marks"
    path.write_bytes(path.read_bytes().replace(b"2 ", b"3 ", 1))
    outcome = sink.commit(committable)
    assert outcome.status is CommitStatus.UNKNOWN  # not lost: to write it all again would double what was delivered
    assert "damaged at byte 0" in outcome.detail
    assert sink.rows == [0, 1, 2, 3]


def test_66_a_damaged_segment_is_an_error_that_names_the_batch_and_sends_nothing(tmp_path: Path):
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(6), range(6, 9))
    path = tmp_path / f"{committable.transaction}.segment"
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        outcome = sink.commit(committable)
        assert outcome.status is CommitStatus.LOST
        assert "damaged: batch" in outcome.detail
    path.write_bytes(whole[:-1])
    assert sink.commit(committable).status is CommitStatus.LOST
    assert sink.rows == []


def test_an_aborted_segment_is_gone_and_one_whose_sending_began_is_not(tmp_path: Path):
    sink = Mailbox(tmp_path)
    first, second = prepared(sink, range(4)), prepared(sink, range(4))
    assert sink.abort(first).status is AbortStatus.ABORTED
    assert sink.commit(first).status is CommitStatus.LOST
    crash_at(Step.MARK_AFTER, 1, sink, second)
    assert sink.abort(second).status is AbortStatus.COMMITTED
    assert sink.commit(second).status is CommitStatus.COMMITTED


def test_what_lingers_is_found_by_its_exact_name(tmp_path: Path):
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(4))
    open_one = sink.begin(context(2))
    found = sink.lingering(Scope("p", "mail", "0123abcd"))
    assert {c.transaction for c in found} == {committable.transaction, str(open_one.name)}
    assert list(sink.lingering(Scope("p", "mai", "0123abcd"))) == []
    assert list(sink.lingering(Scope("p-eu", "mail", "0123abcd"))) == []
    sink.discard(open_one)
    assert {c.transaction for c in sink.lingering(Scope("p", "mail", "0123abcd"))} == {committable.transaction}


def test_two_processes_do_not_send_one_segment_at_once(tmp_path: Path):
    sink = Mailbox(tmp_path)
    committable = prepared(sink, range(4))
    with (tmp_path / f"{committable.transaction}.segment").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert sink.commit(committable).status is CommitStatus.COMMITTED


def test_a_folder_that_knows_the_name_from_another_log_refuses_it(tmp_path: Path):
    sink = Mailbox(tmp_path)
    sink.claim(Scope("p", "mail", "0123abcd"))
    sink.claim(Scope("p", "mail", "0123abcd"))
    with pytest.raises(EpochConflictError, match="another decision log"):
        sink.claim(Scope("p", "mail", "ffff0000"))
    sink.release(Scope("p", "mail", "ffff0000"))
    sink.claim(Scope("p", "mail", "ffff0000"))


def test_an_error_of_sending_is_never_taken_for_a_segment_that_is_gone(tmp_path: Path):
    class NeedsACertificate(Mailbox):
        def send(self, rows: pa.RecordBatch, identity: Identity) -> None:  # noqa: ARG002 - signature
            raise FileNotFoundError("no such certificate")

    sink = NeedsACertificate(tmp_path)
    committable = prepared(sink, range(4))
    with pytest.raises(FileNotFoundError, match="certificate"):
        sink.commit(committable)
    assert Mailbox(tmp_path).commit(committable).status is CommitStatus.COMMITTED


def test_a_claim_is_there_whole_or_not_at_all(tmp_path: Path):
    sink = Mailbox(tmp_path)
    sink.claim(Scope("p", "mail", "0123abcd"))
    [claim] = tmp_path.iterdir()
    assert claim.read_text() == "0123abcd"


def test_nothing_is_left_of_completed_epochs(tmp_path: Path):
    sink = Mailbox(tmp_path)
    sink.commit(prepared(sink, range(4)))
    sink.completed(Scope("p", "mail", "0123abcd"), 1)
    kept = [path for path in tmp_path.iterdir() if path.name != IDENTITY]
    assert len(kept) == 2  # what says so of the newest is kept
    sink.completed(Scope("p", "mail", "0123abcd"), 2)
    assert [path.name for path in tmp_path.iterdir()] == [IDENTITY]


@pytest.mark.parametrize("remembers", [True, False])
def test_in_a_pipeline_killed_between_delivery_and_mark_it_is_what_it_says(tmp_path: Path, remembers: bool):
    """The cell "write-ahead log" of the table of guarantees."""
    sink = Mailbox(tmp_path / "log", remembers=remembers, rows_per_send=50)
    p = pipeline(store=MemoryStore(), backend=FileBackend(tmp_path / "state"), checkpoint=CheckpointConfig())
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
    doubled = Counter(sink.rows) - expected
    assert expected - Counter(sink.rows) == Counter()
    assert bool(doubled) is not remembers
    level, why = p.guarantee()
    assert level == ("exactly-once" if remembers else "at-least-once")
    assert remembers or "sink mail" in why[0]
