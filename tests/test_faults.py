"""Fault injection around sinks, sources and stores, outside of the conformance suite."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from onceward.core import RestartStrategy
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Committable
from onceward.core.errors import ConfigurationError, RetryableSinkError, SourceError, StoreError
from onceward.core.log import MemoryStore
from onceward.sinks import DirectSink, Ledger, TwoPhaseCommitSink
from onceward.sources import LiveSource, ResettableSource, SequenceSource
from onceward.testing.faults import Fault, FaultKind, Faults, delay, die_after, duplicate, fail, lose_answer
from onceward.testing.wrappers import (
    FaultyDirectSink,
    FaultyLedger,
    FaultyLiveSource,
    FaultySink,
    FaultySource,
    FaultyStore,
)

from .engine_kit import numbers, pipeline
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Shown(DirectSink[list[Any]]):
    """Rows show as they are written."""

    def __init__(self, target: Target) -> None:
        super().__init__("shown")
        self.target = target

    def open(self, context: Any) -> list[Any]:  # noqa: ARG002 - signature
        return self.target.committed.setdefault("all", [])

    def write(self, writer: list[Any], batch: pa.RecordBatch) -> None:
        writer += batch.to_pylist()


def made(faults: Faults, call: str = "x") -> tuple[list[int], object]:
    """How often a call was made, and what the caller got."""
    done: list[int] = []

    def make() -> str:
        done.append(1)
        return "answer"

    return done, faults.around(call, make, lambda words: words)


@pytest.mark.parametrize(
    ("order", "often", "answer"),
    [
        (fail, 0, "injected fault: fail, at x"),
        (lose_answer, 1, "injected fault: lose the answer, at x"),
        (duplicate, 2, "answer"),
    ],
)
def test_each_fault_does_what_it_says_at_its_call_only(order: Callable[..., Fault], often: int, answer: str):
    faults = Faults(order("x", nth=2, times=2))
    seen = [made(faults) for _ in range(4)]
    assert [(len(done), got) for done, got in seen] == [(1, "answer"), (often, answer), (often, answer), (1, "answer")]
    assert faults.calls == ["x"] * 4
    assert faults.left() == []


def test_a_delay_takes_its_time():
    began = time.monotonic()
    assert made(Faults(delay("x", 0.1)))[1] == "answer"
    assert time.monotonic() - began >= 0.1


def test_what_did_not_happen_is_told():
    faults = Faults(fail("y"), fail("x"))
    made(faults)
    assert faults.left() == [fail("y")]


def test_a_call_that_no_network_repeats_is_not_made_twice_and_counts_as_left():
    sink = Mock(select=None, where=None)
    sink.name = "s"
    faults = Faults(duplicate("begin"))
    FaultySink(sink, faults).begin(None)  # type: ignore[arg-type]
    sink.begin.assert_called_once_with(None)
    assert (faults.struck, faults.left()) == ([], [duplicate("begin")])


def test_a_fault_of_any_call_counts_the_calls_of_all_methods():
    faults = Faults(fail("*", nth=2))
    assert [made(faults, name)[1] == "answer" for name in "xyx"] == [True, False, True]


def test_at_random_is_the_same_for_the_same_seed():
    def strikes(seed: int) -> list[Fault]:
        faults = Faults.at_random(seed, 0.3, kinds=[FaultKind.FAIL, FaultKind.DUPLICATE], calls=["x"])
        for _ in range(100):
            made(faults, "x")
            made(faults, "y")
        assert {fault.call for fault in faults.struck} == {"x"}
        return faults.struck

    assert strikes(1) == strikes(1) != strikes(2)
    assert 15 < len(strikes(1)) < 50


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: fail("x", nth=0),
        lambda: delay("x", -1),
        lambda: Faults.at_random(1, 1.5),
        lambda: Faults.at_random(1, 1, kinds=[]),
    ],
)
def test_impossible_orders_are_refused(wrong: Callable[[], object]):
    with pytest.raises(ConfigurationError):
        wrong()


def test_copies_in_one_process_count_together():
    """Spark unpickles a sink for each task."""
    faults = Faults(fail("x", nth=3))
    travelled = pickle.dumps(faults)
    answers = [made(pickle.loads(travelled))[1] == "answer" for _ in range(4)]
    assert answers == [True, True, False, True]
    assert faults.left() == []


def test_die_ends_the_process_by_sigkill():
    code = (
        "from onceward.testing.faults import Faults, die_after\n"
        "Faults(die_after('x')).around('x', lambda: print('made', flush=True), print)\n"
        "print('not reached')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "made\n")
    assert die_after("x").kind is FaultKind.DIE_AFTER


def test_a_sinks_outcomes_are_values_and_its_other_faults_may_pass():
    target = Target()
    sink = FaultySink(TargetSink(target), Faults(fail("commit_many"), fail("abort"), fail("lingering")))
    nothing = Committable(
        kind="target", version=1, pipeline="p", sink="target", log="l", generation=0, epoch=0, transaction="t"
    )
    assert sink.commit(nothing).status is CommitStatus.RETRY_LATER
    assert sink.abort(nothing).status is AbortStatus.RETRY_LATER
    with pytest.raises(RetryableSinkError):
        sink.lingering(None)  # type: ignore[arg-type]


def test_faults_strike_the_calls_of_a_sinks_ledger():
    calls = ("check_claim", "claim", "release", "accept_loss", "completed", "forget")
    faults = Faults(*(fail(call) for call in calls))
    for call in calls:
        with pytest.raises(RetryableSinkError):
            getattr(FaultySink(TargetSink(Target()), faults).ledger(), call)(None, None)
    assert FaultySink(TargetSink(Target()), faults).ledger().records_transactions is False


@pytest.mark.parametrize(
    ("wrapper", "contract"),
    [
        (FaultySink, TwoPhaseCommitSink),
        (FaultyLedger, Ledger),
        (FaultyDirectSink, DirectSink),
        (FaultySource, ResettableSource),
        (FaultyLiveSource, LiveSource),
    ],
)
def test_a_faulty_wrapper_passes_on_every_method_of_the_contract(wrapper: type, contract: type):
    inherited = {name for name in dir(contract) if name[0] != "_"} - vars(wrapper).keys()
    assert inherited == set()


def test_a_stores_put_that_is_repeated_says_that_a_value_is_there():
    store = FaultyStore(MemoryStore(), Faults(duplicate("put_if_absent"), lose_answer("put_if_absent", nth=2)))
    assert store.put_if_absent("1", b"x") is False
    with pytest.raises(StoreError):
        store.put_if_absent("2", b"y")
    assert (store.get("1"), store.get("2")) == (b"x", b"y")


def test_a_source_fails_in_the_middle_of_a_split():
    source = FaultySource(SequenceSource(numbers(10, keys=1), batch_rows=2), Faults(fail("piece", nth=3)))
    [split] = source.splits(source.start(), source.end())
    pieces = source.read(split)
    assert [next(pieces).batch.num_rows for _ in range(2)] == [2, 2]
    with pytest.raises(SourceError):
        next(pieces)


@pytest.mark.parametrize("seed", range(8))
def test_a_pipeline_survives_faults_at_random_in_sink_source_and_store(seed: int):
    """All three at once, and each record shows once."""
    target = Target()
    store = FaultyStore(MemoryStore(), Faults.at_random(seed, 0.02))
    graph = pipeline("chaos", store=store, restart=RestartStrategy.fixed_delay(attempts=1000, delay=0))
    calls = ["latest", "splits", "read", "piece", "publish"]
    source = FaultySource(
        SequenceSource(numbers(600, keys=3), units=2, batch_rows=20), Faults.at_random(seed, 0.02, calls=calls)
    )
    # a write or a preparation is never made twice: a network repeats requests, not a session's calls
    sink = FaultySink(TargetSink(target), Faults.at_random(seed, 0.05))
    graph.source(source, uid="in", parallelism=2).sink(sink, parallelism=2)
    graph.run()
    assert target.counts("n") == Counter(range(600))


def test_a_direct_sink_writes_twice_what_a_network_repeats_and_loses_nothing():
    """At least once, and the wrapper shows it."""
    target = Target()
    faults = Faults(duplicate("write", nth=2), fail("flush"), fail("open"))
    graph = pipeline("direct", restart=RestartStrategy.fixed_delay(attempts=10, delay=0))
    graph.source(SequenceSource(numbers(60, keys=3), batch_rows=20), uid="in").sink(
        FaultyDirectSink(Shown(target), faults)
    )
    graph.run()
    assert faults.left() == []
    assert set(target.counts("n")) == set(range(60))
    assert max(target.counts("n").values()) > 1


class Radio(LiveSource):
    """Three batches, heard once."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema({"n": pa.int64()})

    @property
    def bounded(self) -> bool:
        return True

    def listen(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch | None]:  # noqa: ARG002 - signature
        for n in range(3):
            yield None
            yield pa.RecordBatch.from_pydict({"n": [n]})


def test_a_live_source_loses_what_does_not_arrive():
    heard = FaultyLiveSource(Radio(), Faults(fail("arrival", nth=2))).listen(0, 1)
    assert next(heard) is None
    assert next(heard) == pa.RecordBatch.from_pydict({"n": [0]})
    assert next(heard) is None
    with pytest.raises(SourceError):
        next(heard)
