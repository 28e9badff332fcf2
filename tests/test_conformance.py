"""The conformance suite itself: right sinks pass it, and each wrong one fails the case that is about its fault."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pyarrow as pa
import pytest

from onceward import FileSink
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    Progress,
    WriteContext,
)
from onceward.core.errors import ConfigurationError, EpochConflictError, RetryableSinkError, SchemaError, SinkError
from onceward.core.kit.crash_points import Step
from onceward.core.kit.folders import file_errors
from onceward.sinks import WriteAheadLogSink
from onceward.testing.conformance import SinkCase, SinkConformance, SinkUnderTest
from onceward.testing.killing import kill_everywhere
from onceward.testing.sink_case import numbered
from onceward.testing.watch import is_bug, time_limit

from .sink_kit import Target, TargetSink, delete_files_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onceward.core.contract.names import Scope


EVERY_TYPE = pa.schema(
    {
        "text": pa.string(),
        "whole": pa.int64(),
        "small": pa.uint8(),
        "real": pa.float64(),
        "yes": pa.bool_(),
        "money": pa.decimal128(12, 2),
        "day": pa.date32(),
        "time": pa.timestamp("us"),
        "instant": pa.timestamp("us", tz="UTC"),
        "bytes": pa.binary(),
        "list": pa.list_(pa.string()),
        "struct": pa.struct({"a": pa.int8(), "b": pa.list_(pa.float32())}),
    }
)


def sink_under_test_of(kind: type[TargetSink]) -> SinkUnderTest:
    target = Target(keeps_ledger=True)
    return SinkUnderTest(
        make=lambda: kind(target),
        read=lambda: [row["n"] for row in target.rows],
        read_rows=lambda: target.rows,
        columns=EVERY_TYPE,
        ordered=True,
        hasty=lambda: kind(target),
        secret="hunter2",
        refused=lambda numbers: numbered([-n for n in numbers]),
        misfit=pa.schema({"n": pa.int64(), "no_such_column": pa.string()}),
        take_away=target.take_away,
        delete_prepared=lambda committable: target.delete_prepared(committable.transaction),
    )


class Careful(TargetSink):
    """It knows its target's columns, and what the target refuses."""

    def validate(self, schema: pa.Schema) -> None:
        if "no_such_column" in schema.names:
            raise SchemaError("column no_such_column is not in the target")

    def write(self, transaction: Any, batch: pa.RecordBatch) -> None:
        if min(batch["n"].to_pylist()) < 0:
            raise SinkError("the target refuses negative numbers")
        super().write(transaction, batch)


class TestRightSink(SinkConformance):
    @pytest.fixture
    def sink_under_test(self) -> SinkUnderTest:
        return breakable(Breakable)


class TestFileSink(SinkConformance):
    @pytest.fixture
    def sink_under_test(self, tmp_path: Path) -> SinkUnderTest:
        def read_rows() -> list[dict[str, Any]]:
            files = list(tmp_path.glob("*.jsonl"))
            return [json.loads(line) for path in files for line in path.read_text().split("\n") if line]

        return SinkUnderTest(
            make=lambda: FileSink("files", tmp_path, format="jsonl"),
            read=lambda: [row["n"] for row in read_rows()],
            read_rows=read_rows,
            columns=pa.schema(
                {"text": pa.string(), "whole": pa.int64(), "yes": pa.bool_(), "list": pa.list_(pa.int8())}
            ),
            ordered=True,
            kill=True,
            take_away=lambda: delete_all(tmp_path, "*.jsonl"),
            delete_prepared=lambda committable: delete_files_of(tmp_path, committable),
        )


def delete_all(folder: Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        path.unlink()


class Letters(WriteAheadLogSink):
    """Each delivery is a file named by its identity, so the same one twice is the same as once."""

    remembers = True

    def send(self, rows: pa.RecordBatch, delivery: Any) -> None:
        with file_errors(self.name, Path(self.folder)):
            (Path(self.folder) / f"{delivery}.letter").write_text(json.dumps(rows.to_pylist()))


class TestWriteAheadLogSink(SinkConformance):
    @pytest.fixture
    def sink_under_test(self, tmp_path: Path) -> SinkUnderTest:
        def read_rows() -> list[dict[str, Any]]:
            return [row for path in sorted(tmp_path.glob("*.letter")) for row in json.loads(path.read_text())]

        return SinkUnderTest(
            make=lambda: Letters("letters", tmp_path, rows_per_send=3),
            read=lambda: [row["n"] for row in read_rows()],
            read_rows=read_rows,
            ordered=True,
            kill=True,
            take_away=lambda: delete_all(tmp_path, "*.letter"),
            delete_prepared=lambda committable: delete_files_of(tmp_path, committable),
        )


# Wrong sinks


class CommitsAtPreCommit(TargetSink):
    def pre_commit(self, transaction: Any) -> Committable:
        committable = super().pre_commit(transaction)
        self.commit(committable)
        return committable


class ForgetsToAbort(TargetSink):
    def abort(self, committable: Committable) -> AbortOutcome:  # noqa: ARG002 - signature
        return AbortOutcome(AbortStatus.ABORTED)


class IsNotIdempotent(TargetSink):
    def commit(self, committable: Committable) -> CommitOutcome:
        with self.target.lock:
            rows = self.target.prepared.get(committable.transaction)
            if rows is None:
                return CommitOutcome(CommitStatus.LOST)
            self.target.committed[f"{committable.transaction} {len(self.target.committed)}"] = rows[1]
            return CommitOutcome(CommitStatus.COMMITTED)


class LosesOnTimeOut(TargetSink):
    """The first call of each commit drops the transaction, and says that it may be tried again."""

    tried: ClassVar[set[str]] = set()

    def commit(self, committable: Committable) -> CommitOutcome:
        if committable.transaction not in self.tried:
            self.tried.add(committable.transaction)
            self.target.prepared.pop(committable.transaction, None)
            return CommitOutcome(CommitStatus.RETRY_LATER, "timed out")
        if committable.transaction not in self.target.committed:
            return CommitOutcome(CommitStatus.COMMITTED)
        return super().commit(committable)


class TouchesItsNeighbours(TargetSink):
    def lingering(self, scope: Scope) -> Iterable[Committable]:
        from msgspec.structs import replace

        found = [c for c, _ in self.target.prepared.values() if c.pipeline.startswith(scope.pipeline)]
        return [replace(c, pipeline=scope.pipeline, log=scope.log) for c in found]


class SwallowsUnknown(TargetSink):
    def commit(self, committable: Committable) -> CommitOutcome:
        outcome = super().commit(committable)
        if outcome.status is CommitStatus.LOST:
            return CommitOutcome(CommitStatus.ALREADY_COMMITTED, "it is not there, so it must be committed")
        return outcome


class AbortsWhatIsCommitted(TargetSink):
    def abort(self, committable: Committable) -> AbortOutcome:
        self.target.committed.pop(committable.transaction, None)
        return super().abort(committable)


class OpensForNothing(TargetSink):
    def lingering(self, scope: Scope) -> Iterable[Committable]:  # noqa: ARG002 - signature
        return []


class ForgetsWhoseItIs(TargetSink):
    def check_claim(self, scope: Scope, newest: Progress) -> None:
        """Takes everybody."""

    def claim(self, scope: Scope) -> None:
        """Takes everybody."""


class TouchesLongerNames(TargetSink):
    def lingering(self, scope: Scope) -> Iterable[Committable]:
        found = [c for c, _ in self.target.prepared.values() if c.pipeline == scope.pipeline]
        return [c for c in found if c.sink.startswith(scope.sink)]


class NeverLetsGo(TargetSink):
    def release(self, scope: Scope) -> None:
        """Keeps the names for the lost log."""


class CountsNothing(TargetSink):
    def pre_commit(self, transaction: Any) -> Committable:
        from msgspec.structs import replace

        return replace(super().pre_commit(transaction), rows=0)


class ForgetsHowFarItHadCome(TargetSink):
    def check_claim(self, scope: Scope, newest: Progress) -> None:
        super().check_claim(scope, Progress(1 << 60, newest.epoch))


class ClaimsTooEarly(TargetSink):
    def check_claim(self, scope: Scope, newest: Progress) -> None:
        super().check_claim(scope, newest)
        self.claim(scope)


class LooksUnderItsOwnNameOnly(TargetSink):
    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        return [c for c in super().lingering_elsewhere(pipeline, log) if c.sink == self.name]


class ShowsWhatItWrites(TargetSink):
    def write(self, transaction: Any, batch: pa.RecordBatch) -> None:
        super().write(transaction, batch)
        self.target.committed.setdefault(transaction.name, []).extend(batch.to_pylist())


class CommitsTheNewestOnly(TargetSink):
    def commit_many(self, committables: Any) -> Any:
        newest = self.commit(committables[-1])
        return [newest] * len(committables)


class TakesAnyColumn(TargetSink):
    """Its target has `n` and `text`, and it says so nowhere."""


class GoesOnAfterARefusal(TargetSink):
    """Its target refuses negative numbers, and it swallows that."""

    def write(self, transaction: Any, batch: pa.RecordBatch) -> None:
        super().write(transaction, batch.filter([n >= 0 for n in batch["n"].to_pylist()]))


class TellsItsPassword(TargetSink):
    def __repr__(self) -> str:
        return "TellsItsPassword(dsn='host=h password=hunter2')"


class ExpiresQuietly(TargetSink):
    """Its target aborts what is older than its timeout, and a commit of that says "committed"."""

    @property
    def transaction_timeout(self) -> float:
        return 0.05

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        found = list(super().lingering(scope))
        time.sleep(0.06)
        for committable in found:
            self.target.prepared.pop(committable.transaction, None)
        return found

    def commit(self, committable: Committable) -> CommitOutcome:
        if committable.transaction not in self.target.prepared:
            return CommitOutcome(CommitStatus.ALREADY_COMMITTED)
        return super().commit(committable)


class FlushesTooLate(FileSink):
    """Says prepared, and has the rows in memory."""

    late: ClassVar[dict[str, Any]] = {}

    def pre_commit(self, transaction: Any) -> Committable:
        committable = transaction.context.committable(kind="files", transaction=transaction.name, rows=1)
        self.late[committable.transaction] = transaction
        return committable

    def commit(self, committable: Committable) -> CommitOutcome:
        transaction = self.late.pop(committable.transaction, None)
        return CommitOutcome(CommitStatus.ALREADY_COMMITTED) if transaction is None else self._now(transaction)

    def _now(self, transaction: Any) -> CommitOutcome:
        return super().commit(super().pre_commit(transaction))


class KeepsRowsInTheHandle(TargetSink):
    """The decision log then holds a copy of all rows."""

    def pre_commit(self, transaction: Any) -> Committable:
        committable = super().pre_commit(transaction)
        return msgspec.structs.replace(committable, handle={"rows": ["row"] * committable.rows})


WRONG = {
    KeepsRowsInTheHandle: "test_a_handle_does_not_grow_with_the_rows",
    CommitsAtPreCommit: "test_02_rows_prepared_and_not_decided_are_not_visible",
    ForgetsToAbort: "test_29_and_31_an_abort_can_be_repeated",
    IsNotIdempotent: "test_21_25_and_26_a_commit_can_be_repeated",
    LosesOnTimeOut: "test_03_rows_of_a_completed_epoch_are_visible_once",
    TouchesItsNeighbours: "test_37_38_and_72_what_carries_another_name_is_not_touched",
    SwallowsUnknown: "test_22_and_23_what_somebody_else_ended_is_never_taken_for_committed",
    AbortsWhatIsCommitted: "test_30_what_is_committed_is_not_aborted",
    OpensForNothing: "test_44_what_lingers_is_listed_and_gone_after_a_start",
    ForgetsWhoseItIs: "test_91_a_fresh_log_under_an_old_name_is_refused",
    TouchesLongerNames: "test_37_38_and_72_what_carries_another_name_is_not_touched",
    NeverLetsGo: "test_91_a_fresh_log_under_an_old_name_is_refused",
    CountsNothing: "test_03_rows_of_a_completed_epoch_are_visible_once",
    ForgetsHowFarItHadCome: "test_91_an_outdated_copy_of_the_log_is_refused_until_it_is_rewound",
    ClaimsTooEarly: "test_91_a_log_that_never_decided_anything_can_be_replaced",
    LooksUnderItsOwnNameOnly: "test_38_what_a_sink_of_another_name_left_is_found_and_swept",
    ShowsWhatItWrites: "test_01_rows_written_without_a_checkpoint_are_not_visible",
    CommitsTheNewestOnly: "test_28_transactions_of_several_epochs_are_committed_together",
    TakesAnyColumn: "test_a_schema_that_does_not_fit_is_refused_before_anything_is_written",
    GoesOnAfterARefusal: "test_74_and_81_rows_that_the_target_refuses_fail_the_epoch",
    TellsItsPassword: "test_errors_and_text_forms_show_no_password",
    ExpiresQuietly: "test_40_41_and_43_a_decided_transaction_that_timed_out_is_a_loud_loss",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_sink_fails_the_case_that_is_about_its_fault(
    kind: type[TargetSink], caplog: pytest.LogCaptureFixture
) -> None:
    case = getattr(SinkConformance(), WRONG[kind])
    arguments: dict[str, Any] = {"rewound": False} if "fresh_log" in WRONG[kind] else {}
    if "password" in WRONG[kind]:
        arguments["caplog"] = caplog
    with pytest.raises((AssertionError, pytest.fail.Exception, EpochConflictError)):
        case(SinkCase(sink_under_test_of(kind)), **arguments)


# Sinks that are wrong only about transactions without a trace


class NoTrace(TargetSink):
    """A sink that knows what it aborted and committed; for other transactions, a subclass chooses the answer."""

    says = CommitStatus.COMMITTED

    def commit(self, committable: Committable) -> CommitOutcome:
        outcome = super().commit(committable)
        unknown = outcome.status is CommitStatus.LOST and committable.transaction not in self.target.aborted
        return CommitOutcome(self.says) if unknown else outcome


class SaysAlreadyCommitted(NoTrace):
    says = CommitStatus.ALREADY_COMMITTED


class WaitsForEver(NoTrace):
    says = CommitStatus.RETRY_LATER


class VouchesForTheBatch(TargetSink):
    """A sink that counts the statements of a batch and not the rows that they changed."""

    def commit_many(self, committables: Any) -> Any:
        outcomes = [self.commit(committable) for committable in committables]
        return [outcomes[0]] * len(outcomes) if len(outcomes) > 1 else outcomes


class LooksForRowsOnly(TargetSink):
    """A sink that takes rows that a reader has removed for rows that were never committed."""

    def commit(self, committable: Committable) -> CommitOutcome:
        if self.target.committed.get(committable.transaction) == []:
            return CommitOutcome(CommitStatus.LOST)
        return super().commit(committable)


NEVER = "test_23_a_transaction_that_was_never_prepared_is_not_taken_for_committed"
TOGETHER = "test_23_and_28_what_is_committed_together_does_not_vouch_for_what_was_never_prepared"
DELETED = "test_22_and_23_prepared_rows_that_somebody_deleted_are_a_loud_loss"
TAKEN = "test_23_committed_rows_that_a_reader_took_away_are_not_lost"
ABOUT_TRACES = [
    (NoTrace, NEVER, "was never prepared, and commit answered 'committed'. Such an epoch"),
    (NoTrace, DELETED, "were deleted in the target, and commit answered 'committed'"),
    (SaysAlreadyCommitted, NEVER, "was never prepared, and commit answered 'already committed'"),
    (SaysAlreadyCommitted, DELETED, "were deleted in the target, and commit answered 'already committed'"),
    (WaitsForEver, NEVER, "was never prepared, and commit still answers 'retry later'"),
    (WaitsForEver, DELETED, "were deleted in the target, and commit still answers 'retry later'"),
    (VouchesForTheBatch, TOGETHER, "one was never prepared, and commit answered 'committed'"),
    (LooksForRowsOnly, TAKEN, "a reader took them away, and commit answers 'lost'"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "message"), ABOUT_TRACES)
def test_a_sink_that_is_wrong_about_what_has_no_trace_is_told_what_is_wrong(
    kind: type[TargetSink], name: str, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        getattr(SinkConformance(), name)(SinkCase(sink_under_test_of(kind)))


def test_a_sink_that_answers_lost_must_let_the_conformance_suite_take_transactions_away() -> None:
    """Whether the target would remember a commit cannot be seen from a transaction that was never there."""
    unproven = replace(sink_under_test_of(TargetSink), take_away=None)
    with pytest.raises(AssertionError, match=r"That is a proof.*give SinkUnderTest\.take_away"):
        getattr(SinkConformance(), NEVER)(SinkCase(unproven))


BEGUN = "test_a_commit_that_dies_between_its_steps_is_seen_to_have_begun"


class SaysPrepared(FileSink):
    """It does not say that its commit has begun."""

    def inspect_many(self, committables: Any) -> Any:
        states = super().inspect_many(committables)
        return [Observation.PREPARED if state is Observation.BEGUN else state for state in states]


class AbortsHalf(FileSink):
    """It aborts the files that are still to be moved."""

    def abort(self, committable: Any) -> AbortOutcome:
        super().abort(committable)
        return AbortOutcome(AbortStatus.ABORTED)


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (FileSink, None),
        (SaysPrepared, "said prepared: return Observation.BEGUN for a commit that has begun"),
        (AbortsHalf, "begun at .*, and abort says that it is gone"),
    ],
)
def test_a_sink_whose_commit_takes_several_steps(tmp_path: Path, kind: type[FileSink], complaint: str | None) -> None:
    def read() -> list[int]:
        return [json.loads(line)["n"] for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]

    several = SinkUnderTest(make=lambda: kind("files", tmp_path, format="jsonl", roll_bytes=1), read=read, kill=True)
    with nullcontext() if complaint is None else pytest.raises(AssertionError, match=complaint):
        getattr(SinkConformance(), BEGUN)(SinkCase(several))


def test_rows_that_are_in_memory_only_do_not_survive_sigkill(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def read() -> list[int]:
        return [json.loads(line)["n"] for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]

    sink_under_test = SinkUnderTest(
        make=lambda: FlushesTooLate("files", tmp_path, format="jsonl"), read=read, kill=True
    )
    # Which of them: a start after a kill may notice the loss before the rows are counted.
    with pytest.raises(AssertionError, match=r"rows are missing|the target is not as it was left|the target went back"):
        SinkConformance().test_09_to_15_and_88_a_process_killed_at_each_step_and_call(
            SinkCase(sink_under_test), tmp_path_factory
        )


@pytest.mark.parametrize(
    ("module", "complaint"), [("", "cannot be pickled"), ("no_such_file", "cannot be run in another process")]
)
def test_a_sink_that_no_other_process_can_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, complaint: str
) -> None:
    class Local(FileSink): ...

    if module:
        Local.__module__, Local.__qualname__ = module, "Local"
        made = ModuleType(module)
        vars(made)["Local"] = Local
        monkeypatch.setitem(sys.modules, module, made)
    with pytest.raises(ConfigurationError, match=complaint):
        kill_everywhere(Local("files", tmp_path, format="jsonl"), "p", [], tmp_path)


# A target that its author can break


class Breakable(Careful):
    """Its target can be down: a right sink says so in each call."""

    down = threading.Event()

    def ask(self) -> None:
        if self.down.is_set():
            raise RetryableSinkError("the target is down")

    def begin(self, context: WriteContext) -> Any:
        self.ask()
        return super().begin(context)

    def pre_commit(self, transaction: Any) -> Committable:
        self.ask()
        return super().pre_commit(transaction)

    def commit(self, committable: Committable) -> CommitOutcome:
        self.ask()
        return super().commit(committable)

    def abort(self, committable: Committable) -> AbortOutcome:
        if self.down.is_set():
            return AbortOutcome(AbortStatus.RETRY_LATER)
        return super().abort(committable)

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        self.ask()
        return super().lingering(scope)

    def check_claim(self, scope: Scope, newest: Progress) -> None:
        self.ask()
        super().check_claim(scope, newest)

    def claim(self, scope: Scope) -> None:
        self.ask()
        super().claim(scope)


def breakable(kind: type[TargetSink]) -> SinkUnderTest:
    return replace(sink_under_test_of(kind), break_target=Breakable.down.set, mend_target=Breakable.down.clear)


class SaysCommittedWhenDown(Breakable):
    def commit(self, committable: Committable) -> CommitOutcome:
        return CommitOutcome(CommitStatus.COMMITTED) if self.down.is_set() else super().commit(committable)


class SaysLostWhenDown(Breakable):
    def commit(self, committable: Committable) -> CommitOutcome:
        return CommitOutcome(CommitStatus.LOST) if self.down.is_set() else super().commit(committable)


class SaysAbortedWhenDown(Breakable):
    def abort(self, committable: Committable) -> AbortOutcome:
        return AbortOutcome(AbortStatus.ABORTED) if self.down.is_set() else super().abort(committable)


class ListsNothingWhenDown(Breakable):
    def lingering(self, scope: Scope) -> Iterable[Committable]:
        return [] if self.down.is_set() else super().lingering(scope)


class TakesAnyLogWhenDown(Breakable):
    def check_claim(self, scope: Scope, newest: Progress) -> None:
        if not self.down.is_set():
            super().check_claim(scope, newest)


class HangsWhenDown(Breakable):
    def commit(self, committable: Committable) -> CommitOutcome:
        while self.down.is_set():
            time.sleep(0.01)
        return super().commit(committable)


INSIDE = {
    SaysCommittedWhenDown: ("commit_is_asked_again", "rows are not visible"),
    SaysLostWhenDown: ("commit_is_asked_again", "answer RETRY_LATER"),
    HangsWhenDown: ("commit_is_asked_again", "has not returned after"),
    SaysAbortedWhenDown: ("abort_is_asked_again", "still lingers"),
    ListsNothingWhenDown: ("lingering_is_an_error", "lists 0 of 2"),
    TakesAnyLogWhenDown: ("a_ledger_accepts_no_other_log", "accepted another"),
}


@pytest.mark.parametrize("kind", INSIDE, ids=lambda kind: kind.__name__)
def test_a_sink_that_is_wrong_while_its_target_is_down_is_told_what_is_wrong(
    kind: type[TargetSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.testing.target_cases.MOST_SECONDS", 0.5)
    end, words = INSIDE[kind]
    [name] = [name for name in dir(SinkConformance) if name.endswith(f"a_target_that_fails_inside_of_{end}")]
    with pytest.raises(pytest.fail.Exception, match=f"the target is broken: .*{words}"):
        getattr(SinkConformance(), name)(SinkCase(breakable(kind)))


# Bugs, which no fault of the environment explains


class PassesTooFew(TargetSink):
    def commit(self, committable: Committable) -> CommitOutcome:  # noqa: ARG002 - signature
        return super().commit()  # type: ignore[call-arg]


class IsAlwaysBusy(TargetSink):
    def commit(self, committable: Committable) -> CommitOutcome:  # noqa: ARG002 - signature
        raise RuntimeError("connection 17 is busy")


class Hangs(TargetSink):
    def commit(self, committable: Committable) -> CommitOutcome:
        time.sleep(60)
        return super().commit(committable)


RUN = "test_09_to_15_a_failure_at_each_durable_step_duplicates_and_loses_nothing"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            PassesTooFew,
            r"raised TypeError: .*missing 1 .* at test_conformance.py:\d+ \(commit\): no fault of the envir",
        ),
        (IsAlwaysBusy, r"raised RuntimeError: connection 17 is busy at test_conformance.py:.*: it did so 50 times"),
    ],
)
def test_the_first_error_that_is_a_bug_ends_the_case_and_is_quoted(kind: type[TargetSink], words: str) -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match=words) as caught:
        getattr(SinkConformance(), RUN)(SinkCase(sink_under_test_of(kind)))
    assert isinstance(caught.value.__cause__, TypeError | RuntimeError), "pytest shows its traceback"
    assert time.monotonic() - began < 20


def test_errors_that_an_environment_may_raise_are_no_bugs() -> None:
    may_pass = [
        OSError(),
        ConnectionError(),
        TimeoutError(),
        RuntimeError("closed"),
        SinkError("no"),
        SchemaError("no"),
    ]
    assert not [error for error in [*may_pass, ConfigurationError("no"), msgspec.DecodeError()] if is_bug(error)]
    bugs = [TypeError(), KeyError(), AttributeError(), ValueError(), NotImplementedError(), RecursionError()]
    assert all(map(is_bug, bugs))


def test_a_case_has_a_limit_of_time_and_says_what_the_sink_does() -> None:
    case = SinkCase(sink_under_test_of(Hangs))
    committable, here = case.prepare(), Path(__file__).name
    words = rf"took more than 0.2 s. The sink is in commit at {here}:\d+"
    with pytest.raises(pytest.fail.Exception, match=words), time_limit(0.2, case.sink):
        case.commit(committable)


def test_the_crash_test_reaches_every_step_but_those_of_a_write_ahead_log() -> None:
    """And the right sink survives each of them; a sink that is wrong only there is caught there."""
    assert set(sink_under_test_of(TargetSink).steps) == set(Step)
    with pytest.raises(AssertionError):
        SinkConformance().test_09_to_15_a_failure_at_each_durable_step_duplicates_and_loses_nothing(
            SinkCase(sink_under_test_of(IsNotIdempotent))
        )
