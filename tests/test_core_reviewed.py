# ruff: noqa: ARG001 - overridden methods keep their signatures
"""What a reviewer of the protocol's code proved to be wrong, each as a test that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward import RedisSink
from onceward.connectors.redis import sink as redis_sink
from onceward.connectors.redis.sink import RedisLedger
from onceward.core.checkpoint import Coordinator, OnLost
from onceward.core.checkpoint.numbering import CHECKPOINTS
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.names import NOTHING, Remembered
from onceward.core.contract.transaction import CommitOutcome, CommitStatus, Committable, Observation
from onceward.core.errors import (
    DataLossError,
    EpochConflictError,
    FencedError,
    OncewardError,
    RetryableSinkError,
    SinkError,
    TargetWentBackError,
)
from onceward.core.log import EpochInput, read
from onceward.core.run.pipeline_run import PipelineRun

from .core_fakes import FakeSink, MemoryStore, acknowledgement, policy, prepared
from .losses_kit import ABORTED, ABOUT, COMMITTED, PREPARED, Bench, Case, Target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NEXT = EpochInput(query="q", digest="e", start=[10], end=[20])


def about(epoch: int) -> EpochInput:
    return EpochInput(query="q", start=epoch, end=epoch + 1)


def test_a_sink_that_joins_before_a_torn_epoch_is_healed_is_refused():
    case = Case()
    named = case.decided()
    for name in case.of(case.kafka, named):
        case.kafka.truth[name] = COMMITTED
    case.table.truth[case.of(case.table, named)[0]] = ABORTED
    sinks = [case.table, case.kafka, Target("audit")]
    coordinator = Coordinator("p", case.store, sinks, policy(on_lost=OnLost.REPLAY), heals=True)
    coordinator.open()
    with pytest.raises(EpochConflictError, match="decided before audit took part"):
        coordinator.admit(0, ABOUT)


class Mute(FakeSink):
    """A user's sink whose target cannot be asked, and lists nothing."""

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        return [Observation.UNKNOWN for _ in committables]


def test_a_rewind_ends_what_is_prepared_in_a_target_that_cannot_be_asked():
    store, sink = MemoryStore(), Mute("a")
    coordinator = Coordinator("p", store, [sink], policy())
    coordinator.open()
    coordinator.admit(0, about(0))
    decided = prepared(coordinator.context("a", 0, subtask=0))
    coordinator.writer.decide(0, [decided], sinks=["a"], epoch_input=about(0), subtasks=1)
    Coordinator("p", store, [sink], policy()).open(rewind="x", first_epoch=0, query="q")
    assert decided.transaction in sink.aborted


def test_a_start_after_a_rewind_sweeps_without_asking_how_far_the_target_had_come():
    """What the rewind took back may have been committed meanwhile: each start was refused as an outdated copy."""
    store, sink = MemoryStore(), FakeSink("a")
    first = Coordinator("p", store, [sink], policy())
    first.open()
    first.admit(0, about(0))
    first.commit(0, [acknowledgement(sinks=("a",))], about(0))
    rewound = Coordinator("p", store, [sink], policy())
    rewound.open(rewind="x", first_epoch=0, query="q")
    rewound.admit(0, about(0))
    left = prepared(rewound.context("a", 0, subtask=0))
    sink.open = [left]
    sink.claim_error = EpochConflictError("this decision log is an outdated copy")
    Coordinator("p", store, [sink], policy()).open(rewind="x", first_epoch=0, query="q")
    assert sink.aborted == [left.transaction]


def test_a_target_that_says_nothing_of_its_transactions_is_waited_for_before_a_decision():
    bench = Bench(COMMITTED)
    coordinator = bench.open()
    coordinator.admit(1, about(1))
    now = prepared(coordinator.context("a", 1, subtask=0))
    bench.sink.states[bench.done.transaction] = Observation.NO_ANSWER
    with pytest.raises(RetryableSinkError, match="does not say whether"):
        coordinator.commit(1, [acknowledgement(now, epoch=1)], about(1))


@pytest.mark.parametrize("answer", [RuntimeError("a bug"), (True, 3)])
def test_what_one_sink_raises_at_a_start_keeps_no_other_from_committing_what_expires(answer: object):
    case = Case()
    case.decided()

    def asked(*_: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    case.table.check_claim = asked  # type: ignore[method-assign, assignment]
    with pytest.raises(OncewardError):
        case.opened()
    assert case.kafka.with_state(COMMITTED)


def test_a_bug_of_a_sink_is_told_with_its_name():
    bench = Bench(COMMITTED)
    bench.sink.claim_error = RuntimeError("a bug")
    with pytest.raises(SinkError, match=r"asked what it remembers, it raised RuntimeError\('a bug'\)"):
        bench.open()


def test_what_was_given_up_while_a_decision_waits_is_not_refused_again():
    bench = Bench(COMMITTED)
    coordinator = bench.open()
    coordinator.admit(1, about(1))
    coordinator.writer.decide(1, [], sinks=["a"], epoch_input=about(1), subtasks=1)
    bench.sink.states[bench.done.transaction] = Observation.ABORTED
    bench.sink.remembered = Remembered(owned=True, progress=NOTHING)
    bench.open(on_lost=OnLost.SKIP)
    bench.open()


def test_a_target_that_says_it_gives_no_answer_to_a_look_gets_no_commits():
    """One of two transactions is lost. If the other one were committed, the epoch could not be written again."""
    case = Case(subtasks=2)
    first, _ = case.of(case.table, case.decided())
    case.kafka.truth.clear()
    case.kafka._timeout = None
    case.table.truth[first] = ABORTED
    real, silent = case.table.inspect_many, [True]

    def inspect_many(committables: Sequence[Committable]) -> Sequence[Observation]:
        if silent:
            silent.pop()
            return [Observation.NO_ANSWER for _ in committables]
        return real(committables)

    case.table.inspect_many = inspect_many  # type: ignore[method-assign]
    with pytest.raises(DataLossError):
        case.opened(heals=False)
    assert not case.table.with_state(COMMITTED)


def test_a_sink_that_comes_back_is_asked_before_its_first_decision():
    store, first, second = MemoryStore(), FakeSink("a"), FakeSink("b")

    def run(sinks: list[FakeSink], epoch: int, *writes: FakeSink) -> tuple[Coordinator, list[Any]]:
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
    bench.sink.states[bench.done.transaction] = PREPARED
    real = bench.sink.commit

    def commit(committable: Committable) -> CommitOutcome:
        bench.sink.commit = real  # type: ignore[method-assign]
        real(committable)
        return CommitOutcome(CommitStatus.RETRY_LATER, "the answer was lost")

    bench.sink.commit = commit  # type: ignore[method-assign]
    with pytest.raises(TargetWentBackError):
        coordinator.commit(1, [acknowledgement(now, epoch=1)], about(1))


def test_an_engine_whose_sweep_commits_again_decides_nothing_that_was_prepared_before():
    store, sink = MemoryStore(), FakeSink()
    sink.records_transactions = True  # type: ignore[misc]
    first = Coordinator("p", store, [sink], policy(), numbering=CHECKPOINTS)
    first.open()
    left = prepared(first.context("a", 5, subtask=0))
    coordinator = Coordinator("p", store, [sink], policy(), numbering=CHECKPOINTS)
    coordinator.open()
    coordinator.admit(0, about(0))
    done = prepared(coordinator.context("a", 0, subtask=0))
    early = prepared(coordinator.context("a", 1, subtask=0))

    def fail_over() -> None:
        sink.states[done.transaction] = PREPARED

    sink.open, sink.when_listed = [left], fail_over
    coordinator.commit(0, [acknowledgement(done)], about(0), sweep_after=True)
    assert sink.committed.count(done.transaction) == 2
    sink.when_listed = None
    coordinator.admit(1, about(1))
    with pytest.raises(TargetWentBackError):
        coordinator.commit(1, [acknowledgement(early, epoch=1)], about(1))


def test_an_epoch_of_a_run_that_fails_before_its_decision_is_given_up_at_once():
    """What one target has prepared would keep its readers waiting while another one is away."""
    case = Case()
    coordinator = case.opened()
    coordinator.admit(0, ABOUT)
    coordinator.commit(0, case.written(coordinator), ABOUT)
    run = PipelineRun("p", [case.table, case.kafka], policy(), lambda: coordinator.writer.store)
    run.coordinator = coordinator

    def attempt() -> None:
        with run.epoch(1, NEXT) as epoch:
            contexts = [epoch.context(sink, subtask=0) for sink in ("table", "kafka")]
            done = [c.committable(kind="fake", transaction=str(c.transaction_name()), rows=1) for c in contexts]
            case.kafka.open = [done[1]]
            epoch.commit([acknowledgement(*done, epoch=1, sinks=("table", "kafka"))])

    def away(*_: object) -> None:
        raise RetryableSinkError("the database is away")

    case.table.check_claim = away  # type: ignore[method-assign, assignment]
    with pytest.raises(RetryableSinkError):
        attempt()
    assert read(case.store).decided == 0
    assert case.kafka.with_state(ABORTED)


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
