# ruff: noqa: ARG001, ARG002 - overridden methods keep their signatures
"""A target with a ledger that went back to an older state after its commits: noticed at the next start, and told."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from onceward import FileSink, RedisSink, SqlAlchemySink
from onceward.connectors.database.engines import engine_of
from onceward.connectors.files.sink import FileLedger
from onceward.connectors.redis import sink as redis_sink
from onceward.connectors.redis.sink import RedisLedger
from onceward.core.checkpoint import Coordinator, OnLost
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.names import NOTHING, Progress, Reached, Remembered, Scope
from onceward.core.contract.targets import sinks_target
from onceward.core.contract.transaction import CommitOutcome, CommitStatus, Committable, Observation
from onceward.core.errors import (
    CommitPendingError,
    DataLossError,
    DecisionInDoubtError,
    EpochConflictError,
    FencedError,
    LifecycleError,
    RetryableSinkError,
    SinkError,
    TargetWentBackError,
)
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import DirectoryStore, Resolved, read
from onceward.core.operations.log_locations import open_log
from onceward.core.operations.resolve import CommittedEpoch, commit_decided
from onceward.core.operations.survey import survey
from onceward.testing.faults import Faults
from onceward.testing.wrappers import FaultySink

from .coordinator_kit import about
from .core_fakes import MemoryStore, acknowledgement, answer_lost, policy, prepared
from .losses_kit import Bench
from .sink_kit import Crash, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable


COMMITTED, PREPARED, ABORTED = Observation.COMMITTED, Observation.PREPARED, Observation.ABORTED


def test_what_is_still_committed_is_left_alone():
    bench = Bench(COMMITTED)
    bench.open()
    assert bench.sink.target.commits == []


def test_a_target_that_does_not_answer_keeps_no_other_waiting():
    """Another one's decided transactions may be near their timeout."""
    asked = threading.Event()

    class Slow(TargetSink):
        def check_claim(self, scope: Scope, newest: Progress) -> None:
            if not asked.wait(5):
                raise AssertionError("the other was not asked")
            raise RetryableSinkError("no answer")

    class Quick(TargetSink):
        def check_claim(self, scope: Scope, newest: Progress) -> None:
            asked.set()

    coordinator = Coordinator("p", MemoryStore(), [Slow(name="a"), Quick(name="b")], policy())
    with pytest.raises(RetryableSinkError, match="no answer"):
        coordinator.open()


@pytest.mark.parametrize("seen", [Observation.ABSENT, Observation.UNKNOWN, Observation.NO_ANSWER])
def test_nothing_is_concluded_from_no_proof(seen: Observation):
    bench = Bench(seen)
    bench.open()
    assert bench.sink.target.commits == []


def test_what_is_prepared_again_is_committed_again(caplog: pytest.LogCaptureFixture):
    """Invariant 1: the completed decision names it."""
    bench = Bench(PREPARED)
    bench.sink.target.hold(bench.done)
    bench.open()
    assert (bench.sink.target.commits, bench.sink.target.aborted) == ([bench.done.transaction], [])
    assert "was committed, and was prepared again" in caplog.text


@pytest.mark.parametrize("on_lost", OnLost)
def test_a_target_that_went_back_to_before_the_claim_is_claimed_and_committed_to_again(on_lost: OnLost):
    """The claim follows the first epoch's prepare. Booked as lost, its rows would stay prepared for ever."""
    bench = Bench(PREPARED)
    bench.sink.target.hold(bench.done)
    bench.sink.remembered = Remembered(owned=False, progress=NOTHING)
    bench.open(on_lost=on_lost)
    assert (bench.sink.target.commits, bench.sink.target.aborted) == ([bench.done.transaction], [])
    assert bench.sink.remembered.owned
    assert not any(isinstance(entry, Resolved) for entry in read(bench.store).entries)


def test_what_refers_to_rows_of_another_sink_is_committed_again_after_these():
    """As with a foreign key, when a promoted standby has both prepared and neither committed."""
    store, child, parent = MemoryStore(), TargetSink(name="a"), TargetSink(name="b")
    coordinator = Coordinator("p", store, [child, parent], policy())
    coordinator.open()
    coordinator.admit(0, about(0))
    of_sinks = [prepared(coordinator.context(name, 0, subtask=0)) for name in "ab"]
    coordinator.commit(0, [acknowledgement(*of_sinks, sinks=("a", "b"))], about(0))

    class Refusing(TargetSink):
        def commit(self, committable: Committable) -> CommitOutcome:
            if not parent.target.commits:
                raise SinkError("violates foreign key constraint")
            return super().commit(committable)

    again = Refusing(name="a")
    for sink, committable in zip((again, parent), of_sinks, strict=True):
        sink.records_transactions = True  # type: ignore[misc]
        sink.target.states[committable.transaction] = PREPARED
        sink.target.commits.clear()
    Coordinator("p", store, [again, parent], policy()).open()
    assert (again.target.commits, parent.target.commits) == ([of_sinks[0].transaction], [of_sinks[1].transaction])


def test_a_target_that_does_not_answer_then_fails_the_start():
    bench = Bench(PREPARED)
    bench.sink.answers = [CommitStatus.RETRY_LATER]
    with pytest.raises(RetryableSinkError, match="cannot commit again"):
        bench.open()


def test_what_a_sink_must_not_return_from_a_repeated_commit_is_named(monkeypatch: pytest.MonkeyPatch):
    bench = Bench(PREPARED)
    monkeypatch.setattr(bench.sink, "commit_many", lambda _: None)
    with pytest.raises(LifecycleError, match="commit of TargetSink returned None, not a sequence of CommitOutcome"):
        bench.open()


def test_what_is_gone_is_a_loud_loss_at_each_start_and_nothing_is_swept():
    """Invariant 8. What is prepared there may be of an epoch that was committed once."""
    bench = Bench(ABORTED)
    older = msgspec.structs.replace(bench.done, transaction=f"{bench.done.transaction}x", subtask=1)
    bench.sink.target.hold(older)
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"1 decided transactions with 7 rows.*standby.*rewind='why'"):
            bench.open()
    assert (bench.sink.target.commits, bench.sink.target.aborted) == ([], [])


def test_injected_faults_do_not_hide_a_ledger():
    bench = Bench(ABORTED)
    with pytest.raises(DataLossError):
        Coordinator("p", bench.store, [FaultySink(bench.sink, Faults())], policy()).open()


def test_replay_is_no_choice_for_a_completed_epoch():
    with pytest.raises(DataLossError, match="rewind='why', with an older checkpoint"):
        Bench(ABORTED).open(on_lost=OnLost.REPLAY)


def test_on_lost_skip_goes_on_and_leaves_an_audit_record():
    bench = Bench(ABORTED)
    assert bench.open(on_lost=OnLost.SKIP).view.skipped == {bench.done.transaction}
    bench.open()  # it is said once


def test_a_rewind_asks_for_nothing():
    Coordinator("p", (bench := Bench(ABORTED)).store, [bench.sink], policy()).open(rewind="the database was restored")


def test_a_sink_without_a_ledger_is_not_asked():
    Bench(ABORTED, records_transactions=False).open()


class Idle(Bench):
    """A pipeline whose newest epoch brought the sink nothing: only the log's own memory tells what it must have."""

    def __init__(self, remembered: Remembered | None) -> None:
        super().__init__(COMMITTED)
        coordinator = self.open()
        for epoch in (1, 2):
            coordinator.admit(epoch, about(epoch))
            coordinator.commit(epoch, [acknowledgement(epoch=epoch)], about(epoch))
        self.sink.remembered = remembered
        self.sink.target.hold(msgspec.structs.replace(self.done, transaction=f"{self.done.transaction}x", subtask=1))


FORGOTTEN = [
    pytest.param(Remembered(owned=True, progress=NOTHING), "is empty. Epoch 0 is missing", id="went back"),
    pytest.param(
        Remembered(True, Progress(0, 0), transactions=0), "has 0 of the 1 transactions of epoch 0", id="a part"
    ),
    pytest.param(Remembered(owned=False, progress=NOTHING), "does not know this pipeline and sink", id="another one"),
]


@pytest.mark.parametrize(("remembered", "words"), FORGOTTEN)
def test_a_target_that_has_forgotten_is_told_at_each_start_and_not_swept(remembered: Remembered, words: str):
    bench = Idle(remembered)
    for _ in range(2):
        with pytest.raises(DataLossError, match=rf"not as it was left: .*{words}.*rewind='why'.*on_lost='skip'"):
            bench.open()
    assert bench.sink.target.aborted == []


@pytest.mark.parametrize(("remembered", "words"), FORGOTTEN)
def test_a_target_that_has_forgotten_is_accepted_as_it_is_once(remembered: Remembered, words: str):
    bench = Idle(remembered)
    assert bench.open(on_lost=OnLost.SKIP).view.reached == {}
    [record] = [entry for entry in bench.open().view.entries if isinstance(entry, Resolved)]
    assert (record.sink, record.transaction) == ("a", "")
    assert words in record.why


def test_a_target_is_accepted_also_while_a_decision_waits():
    bench = Idle(None)
    coordinator = bench.open()
    coordinator.admit(3, about(3))
    with hooked(dying), pytest.raises(Crash):
        coordinator.commit(3, [acknowledgement(epoch=3)], about(3))
    bench.sink.remembered = Remembered(owned=True, progress=NOTHING)
    assert bench.open(on_lost=OnLost.SKIP).view.completed == 3
    bench.open()  # it is said once


def test_an_audit_record_whose_put_is_in_doubt_ends_the_run():
    """It was taken for the target's silence: the epoch's decision was offered for the slot of the record."""
    bench = Idle(None)
    coordinator = bench.open(on_lost=OnLost.SKIP)
    coordinator.admit(3, about(3))
    bench.sink.remembered = Remembered(owned=True, progress=NOTHING)
    bench.store.put_faults = [answer_lost] * 100
    with pytest.raises(DecisionInDoubtError, match="may or may not be written"):
        coordinator.commit(3, [acknowledgement(epoch=3)], about(3))
    bench.store.put_faults = []
    assert bench.open(on_lost=OnLost.SKIP).view.completed == 2


def dying(step: Step) -> None:
    if step is Step.DECIDE_AFTER:
        raise Crash


def test_what_the_log_knows_of_a_sink_outlives_pruned_decisions():
    bench = Idle(None)
    assert bench.open().view.reached == {"a": Reached(bench.done.generation, 0, 1)}


def test_a_target_that_knows_all_or_remembers_nothing_is_taken_as_it_is():
    bench = Idle(None)
    bench.open()
    bench.sink.remembered = Remembered(owned=True, progress=Progress(bench.done.generation, 0))
    bench.open()
    bench.open(on_lost=OnLost.SKIP)


def test_a_rewind_begins_with_whatever_the_target_knows():
    bench = Idle(Remembered(owned=False, progress=NOTHING))
    Coordinator("p", bench.store, [bench.sink], policy()).open(rewind="another database")
    bench.open()


SCHEMA = pa.schema({"n": pa.int64()})


class Disk:
    """A pipeline with one sink whose target is on a disk that can be copied, brought back, or not be mounted."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind, self.place = folder, kind, folder / "disk"
        self.place.mkdir()
        self.begin()

    def begin(self, **changes: object) -> None:
        if self.kind == "files":
            self.sink: Any = FileSink("s", self.place)
        else:
            self.sink = SqlAlchemySink("s", url=f"sqlite:///{self.place}/t.db", table="t", create_table=True)
            self.close()
        self.sink.validate(SCHEMA)
        store = DirectoryStore(self.folder / "log")
        self.coordinator = Coordinator("p", store, [self.sink], policy(**changes))
        self.coordinator.open()

    def run(
        self, epoch: int, *rows: int, prepared: Callable[[], object] = lambda: None, sweep_after: bool = False
    ) -> None:
        self.coordinator.admit(epoch, about(epoch))
        subtask = SubtaskEpoch(self.sink, self.coordinator.context("s", epoch, subtask=0))
        if rows:
            subtask.write(pa.record_batch({"n": rows}))
        committable = subtask.pre_commit()
        prepared()
        done = [committable] if committable is not None else []
        acks = [acknowledgement(*done, sinks=("s",), epoch=epoch)]
        self.coordinator.commit(epoch, acks, about(epoch), sweep_after=sweep_after)

    def keep(self) -> None:
        shutil.copytree(self.place, self.folder / "copy")

    def close(self) -> None:
        if self.kind == "sqlite":
            engine_of(self.sink.target).dispose()  # what comes next might be a process of its own

    def bring_back(self) -> None:
        self.close()
        shutil.rmtree(self.place)
        shutil.copytree(self.folder / "copy", self.place)

    def unmount(self) -> None:
        self.place.rename(self.folder / "away")
        self.place.mkdir()

    def mount(self) -> None:
        shutil.rmtree(self.place)
        (self.folder / "away").rename(self.place)


@pytest.fixture(params=["files", "sqlite"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return Disk(tmp_path, request.param)


@pytest.mark.parametrize("last", [(), (3,)], ids=["an epoch without rows", "an epoch with rows"])
def test_an_older_copy_is_noticed_whatever_came_last(disk: Disk, last: tuple[int, ...]):
    disk.run(0, 1)
    disk.keep()
    disk.run(1, 2)
    disk.run(2, *last)
    disk.bring_back()
    with pytest.raises(DataLossError):
        disk.begin()


def restored_while_a_decision_waits(disk: Disk) -> None:
    """Invariant 8. If it had the next epoch, the target would look intact; so no run decides that epoch any more."""
    disk.run(0, 1)
    disk.keep()
    disk.run(1, 2)
    disk.bring_back()
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(Coordinator, "_check_kept", lambda *_: 0.0)
        with hooked(dying), pytest.raises(Crash):
            disk.run(2, 3)


def unanswered(*_: object) -> None:
    raise RetryableSinkError("no answer in time")


def test_a_loss_is_told_at_each_start_also_if_a_decision_waits(disk: Disk):
    restored_while_a_decision_waits(disk)
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"the target no longer has it.*epoch 1"):
            disk.begin()
    disk.begin(on_lost=OnLost.SKIP)
    disk.begin()
    assert disk.coordinator.view.completed == 2


def test_a_loss_is_told_to_an_operator_who_commits_the_decision_that_waits(disk: Disk):
    restored_while_a_decision_waits(disk)
    log, target = open_log(str(disk.folder / "log")), sinks_target([disk.sink], "the sinks")
    waiting = log.view.undone
    assert waiting is not None
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"the target no longer has it.*epoch 1"):
            commit_decided(log, waiting, survey([log], [target]).transactions)
    assert log.view.completed == 1
    assert commit_decided(
        log, waiting, survey([log], [target]).transactions, skip_lost="the backup was all there is"
    ) == CommittedEpoch(2, 1, 0)
    record, *_ = [entry for entry in log.view.entries if isinstance(entry, Resolved)]
    assert record.why.startswith("the backup was all there is; lost: it was committed, but the target no longer has it")
    disk.begin()


def test_a_check_that_is_not_answered_keeps_no_operator_from_committing(disk: Disk, monkeypatch: pytest.MonkeyPatch):
    """A prepared transaction may be what the answer waits for: somebody wants to lock the ledger."""
    disk.run(0, 1)
    with hooked(dying), pytest.raises(Crash):
        disk.run(1, 2)
    log, target = open_log(str(disk.folder / "log")), sinks_target([disk.sink], "the sinks")
    waiting = log.view.undone
    assert waiting is not None
    monkeypatch.setattr(FileLedger, "check_claim", unanswered)
    assert commit_decided(log, waiting, survey([log], [target]).transactions) == CommittedEpoch(1, 1, 0)


def test_a_loss_that_was_accepted_is_not_told_again(disk: Disk):
    disk.run(0, 1)
    disk.keep()
    disk.run(1, 2)
    disk.bring_back()
    disk.begin(on_lost=OnLost.SKIP)
    for epoch in (2, 3):
        disk.begin()
        disk.run(epoch)
    disk.begin()


def test_what_an_older_copy_has_prepared_is_not_aborted(disk: Disk):
    disk.run(0, 1)
    disk.run(1, 2, prepared=disk.keep)
    disk.run(2)
    disk.bring_back()
    with pytest.raises(DataLossError):
        disk.begin()
    assert [c.epoch for c in disk.sink.lingering(Scope("p", "s", disk.coordinator.view.log))] == [1]


def test_what_a_target_has_prepared_again_after_a_decision_is_not_swept(disk: Disk):
    """The log has been pruned of the decision that named it."""
    disk.run(0, 1)
    disk.run(1, 2, prepared=disk.keep)
    disk.run(2, 3)

    def go_back(step: Step) -> None:
        if step is Step.DECIDE_AFTER:
            disk.bring_back()

    with hooked(go_back):
        disk.run(3, sweep_after=True)
    assert [c.epoch for c in disk.sink.lingering(Scope("p", "s", disk.coordinator.view.log))] == [1]
    with pytest.raises(DataLossError):
        disk.run(4)


def test_a_disk_that_is_not_mounted_at_the_start_is_noticed(disk: Disk):
    for epoch in range(2):
        disk.run(epoch, epoch)
    disk.unmount()
    with pytest.raises(DataLossError, match="is a disk not mounted"):
        disk.begin()
    disk.mount()
    disk.begin()
    disk.run(2, 2)


def test_a_folder_that_is_no_longer_mounted_while_the_pipeline_runs_is_noticed(tmp_path: Path):
    disk = Disk(tmp_path, "files")
    disk.run(0, 0)
    disk.unmount()
    with pytest.raises(DataLossError, match="is a disk not mounted"):
        disk.run(1, 1)
    disk.mount()
    disk.begin()
    disk.run(1, 1)


def test_a_folder_that_is_no_longer_mounted_after_a_decision_is_noticed(tmp_path: Path):
    disk = Disk(tmp_path, "files")
    disk.run(0, 0)

    def unmount(step: Step) -> None:
        if step is Step.DECIDE_AFTER:
            disk.unmount()

    with hooked(unmount), pytest.raises(CommitPendingError, match="is it the right folder, and mounted"):
        disk.run(1, 1)
    disk.mount()
    disk.begin()
    assert disk.coordinator.view.completed == 1


@pytest.mark.parametrize("rows", [(), (3,)], ids=["an epoch without rows", "an epoch with rows"])
def test_a_target_that_goes_back_while_the_pipeline_runs_is_noticed_before_the_next_decision(
    disk: Disk, rows: tuple[int, ...]
):
    disk.run(0, 1)
    disk.keep()
    disk.run(1, 2)
    disk.bring_back()
    with pytest.raises(DataLossError):
        disk.run(2, *rows)
    assert disk.coordinator.view.decided == 1
    disk.begin(on_lost=OnLost.SKIP)
    disk.run(2, *rows)


def test_what_a_target_has_prepared_again_while_the_pipeline_runs_is_committed_again(disk: Disk):
    disk.run(0, 1)
    disk.run(1, 2, prepared=disk.keep)
    disk.bring_back()
    with pytest.raises(TargetWentBackError, match="is committed again"):
        disk.run(2, 3)
    assert disk.coordinator.view.decided == 1
    disk.begin()
    disk.run(2, 3)
    assert list(disk.sink.lingering(Scope("p", "s", disk.coordinator.view.log))) == []


def test_a_folder_that_is_gone_for_good_while_a_decision_waits_can_be_gone_on_without(tmp_path: Path):
    """Each message says the next step, and what the last one offers works."""
    disk = Disk(tmp_path, "files")
    disk.run(0, 0)
    with hooked(dying), pytest.raises(Crash):
        disk.run(1, 1)
    disk.unmount()
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"does not know this pipeline.*on_lost='skip' continues"):
            disk.begin()
    with pytest.raises(CommitPendingError, match=r"gone for good, write [0-9a-f]{16} into ") as pending:
        disk.begin(on_lost=OnLost.SKIP)
    words = str(pending.value).partition("gone for good, write ")[2].split()
    Path(words[2].rstrip(",")).write_text(words[0])
    disk.begin(on_lost=OnLost.SKIP)
    disk.begin()
    disk.run(2, 2)


def test_a_target_that_says_nothing_of_its_transactions_is_waited_for_before_a_decision():
    bench = Bench(COMMITTED)
    coordinator = bench.open()
    coordinator.admit(1, about(1))
    now = prepared(coordinator.context("a", 1, subtask=0))
    bench.sink.target.states[bench.done.transaction] = Observation.NO_ANSWER
    with pytest.raises(RetryableSinkError, match="does not say whether"):
        coordinator.commit(1, [acknowledgement(now, epoch=1)], about(1))


def test_what_was_given_up_while_a_decision_waits_is_not_refused_again():
    bench = Bench(COMMITTED)
    coordinator = bench.open()
    coordinator.admit(1, about(1))
    coordinator.writer.decide(1, [], sinks=["a"], epoch_input=about(1), subtasks=1)
    bench.sink.target.states[bench.done.transaction] = Observation.ABORTED
    bench.sink.remembered = Remembered(owned=True, progress=NOTHING)
    bench.open(on_lost=OnLost.SKIP)
    bench.open()


def test_a_sink_that_comes_back_is_asked_before_its_first_decision():
    store, first, second = MemoryStore(), TargetSink(name="a"), TargetSink(name="b")

    def run(sinks: list[TargetSink], epoch: int, *writes: TargetSink) -> tuple[Coordinator, list[Any]]:
        coordinator = Coordinator("p", store, sinks, policy())
        coordinator.open()
        coordinator.admit(epoch, about(epoch))
        done = [prepared(coordinator.context(sink.name, epoch, subtask=0)) for sink in writes]
        return coordinator, [acknowledgement(*done, epoch=epoch, sinks=tuple(sink.name for sink in sinks))]

    coordinator, acks = run([first, second], 0, first, second)
    coordinator.commit(0, acks, about(0))
    first.remembered = Remembered(owned=True, progress=coordinator.view.reached["a"].progress)
    for epoch in (1, 2):
        coordinator, acks = run([second], epoch, second)
        coordinator.commit(epoch, acks, about(epoch))
    coordinator, acks = run([first, second], 3, first)
    first.remembered = Remembered(owned=True, progress=NOTHING)
    with pytest.raises(DataLossError):
        coordinator.commit(3, acks, about(3))


def test_a_repeated_commit_whose_answer_is_lost_fails_the_epoch_too():
    bench = Bench(COMMITTED)
    coordinator = bench.open()
    coordinator.admit(1, about(1))
    now = prepared(coordinator.context("a", 1, subtask=0))
    bench.sink.target.states[bench.done.transaction] = PREPARED
    real = bench.sink.commit

    def commit(committable: Committable) -> CommitOutcome:
        bench.sink.commit = real  # type: ignore[method-assign]
        real(committable)
        return CommitOutcome(CommitStatus.RETRY_LATER, "the answer was lost")

    bench.sink.commit = commit  # type: ignore[method-assign]
    with pytest.raises(TargetWentBackError):
        coordinator.commit(1, [acknowledgement(now, epoch=1)], about(1))


@pytest.mark.parametrize("what", ["emptied", "older"])
def test_a_redis_server_that_went_back_is_told_before_a_decision_and_at_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
):
    server: dict[str, str] = {}

    def change(settings: object, script: object, scope: Any, *_: object) -> bytes:
        return server.setdefault("log", scope.log).encode()

    def deliver(settings: object, name: object, first: int, form: object, rows: Any, *_: object) -> None:
        server[str(name)] = str(first + len(rows))

    monkeypatch.setattr(RedisLedger, "_marker", lambda *_: dict(server))
    monkeypatch.setattr(redis_sink, "change_marker", change)
    monkeypatch.setattr(redis_sink, "deliver", deliver)
    sink, store = RedisSink("redis", tmp_path, url="redis://h", key="k"), MemoryStore()
    coordinator = Coordinator("p", store, [sink], policy())
    coordinator.open()

    def run(epoch: int) -> None:
        coordinator.admit(epoch, about(epoch))
        subtask = SubtaskEpoch(sink, coordinator.context("redis", epoch, subtask=0))
        subtask.write(pa.record_batch({"n": [epoch]}))
        done = subtask.pre_commit()
        assert done is not None
        coordinator.commit(epoch, [acknowledgement(done, epoch=epoch, sinks=("redis",))], about(epoch))

    run(0)
    kept = dict(server) if what == "older" else {}
    run(1)
    server.clear()
    server.update(kept)
    with pytest.raises(DataLossError):
        run(2)
    assert read(store).decided == 1
    with pytest.raises(DataLossError):
        Coordinator("p", store, [sink], policy()).open()


def test_a_fenced_driver_is_told_that_it_is_fenced_and_not_that_its_log_is_outdated():
    bench = Bench(COMMITTED)
    coordinator = bench.open()
    coordinator.admit(1, about(1))
    now = prepared(coordinator.context("a", 1, subtask=0))
    bench.open()
    bench.sink.claim_error = EpochConflictError("this decision log is an outdated copy")
    with pytest.raises(FencedError, match="a newer writer of this pipeline has started"):
        coordinator.commit(1, [acknowledgement(now, epoch=1)], about(1))
