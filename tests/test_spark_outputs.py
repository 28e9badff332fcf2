"""A transformation for each sink: what is written, acknowledged, persisted and released, without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onceward.connectors.spark.session.query_plan import ClassicPlan
from onceward.connectors.spark.write.outputs import (
    Output,
    Transformations,
    checked_persist,
    merge_acknowledgements,
    sinks_of,
)
from onceward.core.checkpoint import OnLost
from onceward.core.contract import events
from onceward.core.contract.events import EpochCompleted, Event
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.errors import ConfigurationError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import read

from .core_fakes import policy
from .sink_kit import TargetSink, target_called
from .spark_kit import Frame, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def handler_of(query: Query, functions: dict[str, Callable[[Any], Any]], *names: str, **changes: Any) -> Any:
    return _handler(query, Transformations(functions), *names, **changes)


def _handler(query: Query, transformations: Transformations, *names: str, **changes: Any) -> Any:
    sinks = [TargetSink(f"{query.key}/{name}", name) for name in names]
    return query.driver(sinks=sinks, outputs=transformations, **changes)


def shown(query: Query, name: str) -> list[int]:
    return sorted(row["n"] for row in target_called(f"{query.key}/{name}").rows)


def test_each_sink_gets_its_own_rows_in_one_decision(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs have three, one and no partitions."""
    functions = {"sum": lambda _: Frame([6]), "none": lambda _: Frame()}
    told: list[Event] = []
    monkeypatch.setattr(events, "_observers", [told.append])
    frame = query.run(0, [1], [2], [3], handler=handler_of(query, functions, "raw", "sum", "none"))
    assert [shown(query, name) for name in ("raw", "sum", "none")] == [[1, 2, 3], [6], []]
    newest = read(query.store).newest
    assert newest is not None
    assert newest.subtasks == 3
    assert tuple(newest.sinks) == ("raw", "sum", "none")
    assert [event.rows() for event in told if isinstance(event, EpochCompleted)] == [{"raw": 3, "sum": 1}]
    assert len(frame.persisted) == 2
    assert frame.persisted[-1] == "released"


@pytest.mark.parametrize(("reads", "kept"), [(1, False), (2, True), (None, True)])
def test_a_batch_is_kept_until_its_end_unless_it_is_read_once(
    query: Query, monkeypatch: pytest.MonkeyPatch, reads: int | None, kept: bool
) -> None:
    monkeypatch.setattr(ClassicPlan, "reads_of", lambda *_: reads)
    result = Frame([2], [4])
    seen: list[list[str]] = []

    def double(batch: Any) -> Frame:
        result.before = lambda: seen.append(list(batch.persisted))
        return result

    frame = query.run(0, [1], [2], handler=handler_of(query, {"a": double, "b": double}, "a", "b"))
    assert shown(query, "a") == shown(query, "b") == [2, 4]
    assert [states[-1] != "released" for states in seen] == [kept]
    assert frame.persisted[-1] == "released"


def test_what_does_not_read_the_micro_batch_is_refused_unless_the_output_says_so(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClassicPlan, "reads_of", lambda *_: 0)
    functions: dict[str, Callable[[Any], Any]] = {"a": lambda _: Frame([2])}
    with pytest.raises(ConfigurationError, match=r"does not read the micro-batch.*reads_batch=False"):
        query.run(0, [1], handler=_handler(query, Transformations(functions, reading={"a"}), "a"))
    assert read(query.store).newest is None
    query.run(0, [1], handler=_handler(query, Transformations(functions), "a"))
    assert shown(query, "a") == [2]


@pytest.mark.parametrize("names", [("a",), ("raw", "a")])
def test_a_query_that_keeps_state_runs_the_whole_batch_whatever_its_outputs_read(
    query: Query, names: Sequence[str]
) -> None:
    functions: dict[str, Callable[[Any], Any]] = {"a": lambda _: Frame()}
    transformations = Transformations(functions, stateful=True)
    frame = query.run(0, [1], [2], handler=_handler(query, transformations, *names))
    assert frame.drained == (names == ("a",))
    assert frame.persisted[-1] == "released"


def test_a_query_that_keeps_state_runs_the_whole_batch_when_a_lost_output_alone_is_written_again() -> None:
    functions: dict[str, Callable[[Any], Any]] = {"a": lambda _: Frame()}
    transformations = Transformations(functions, stateful=True)
    frame: Any = Frame([1])
    with transformations.jobs(frame, []) as jobs:
        assert jobs == []
    assert frame.drained == 1


def test_an_epoch_whose_second_job_fails_is_given_up_whole_and_released(query: Query) -> None:
    attempts: list[Frame] = []

    def failing(_: Any) -> Frame:
        attempts.append(Frame([10], [20], fails=None if attempts else 1))
        return attempts[-1]

    handler = handler_of(query, {"other": failing}, "raw", "other")
    query.checkpoint.plan(0)
    frame: Any = Frame([1], [2])
    with pytest.raises(OSError, match="the executor is lost"):
        handler(frame, 0)
    assert frame.persisted[-1] == "released"
    assert shown(query, "raw") == shown(query, "other") == []
    assert read(query.store).newest is None
    query.run(0, [1], [2], handler=handler)
    assert (shown(query, "raw"), shown(query, "other")) == ([1, 2], [10, 20])


def test_a_replay_does_not_call_the_functions_again(query: Query) -> None:
    called: list[int] = []

    def count(_: Any) -> Frame:
        called.append(1)
        return Frame([len(called)])

    query.run(0, handler=handler_of(query, {"count": count}, "raw", "count"))
    query.run(0, handler=handler_of(query, {"count": count}, "raw", "count"))
    assert (called, shown(query, "count")) == ([1], [1])


def test_an_epoch_that_lost_something_computes_and_writes_that_output_alone(query: Query) -> None:
    called: list[str] = []

    def noted(name: str, value: int) -> Callable[[Any], Frame]:
        return lambda _: called.append(name) or Frame([value], [value + 1])  # type: ignore[func-returns-value]

    def handler() -> Any:
        functions = {"a": noted("a", 10), "b": noted("b", 20)}
        return handler_of(query, functions, "raw", "a", "b", policy=policy(on_lost=OnLost.REPLAY))

    def die(step: Step) -> None:
        if step is Step.DECIDE_AFTER:
            raise SystemExit(step)

    with hooked(die), pytest.raises(SystemExit):
        query.run(0, [1], [2], handler=handler())
    undone = read(query.store).undone
    assert undone is not None
    for committable in undone.committables:
        if committable.sink == "b" and committable.subtask == 1:
            target_called(f"{query.key}/b").delete_prepared(committable.transaction)
        else:
            TargetSink(f"{query.key}/{committable.sink}", committable.sink).commit(committable)
    called.clear()
    query.run(0, [1], [2], handler=handler())
    assert called == ["b"]
    assert [shown(query, name) for name in ("raw", "a", "b")] == [[1, 2], [10, 11], [20, 21]]
    assert target_called(f"{query.key}/b").written == 3  # two rows, and the lost one of them


def test_acknowledgements_of_several_jobs_are_one_for_each_subtask() -> None:
    def ack(subtask: int, sink: str, attempt: int = 0) -> Acknowledgement:
        return Acknowledgement(
            epoch=4, subtask=subtask, attempt=attempt, sinks=(sink,), retried=attempt > 0, refused={"bad": 1, sink: 2}
        )

    sinks: Any = [TargetSink("a", "a"), TargetSink("b", "b")]
    one, two = merge_acknowledgements([ack(0, "a"), ack(1, "a", attempt=2), ack(0, "b")], sinks)
    assert (one.subtask, one.sinks, one.retried) == (0, ("a", "b"), False)
    assert (two.subtask, two.sinks, two.retried, two.attempt) == (1, ("a", "b"), True, 2)
    assert (one.refused, two.refused) == ({"bad": 2, "a": 2, "b": 2}, {"bad": 1, "a": 2})


def test_what_is_no_output_is_refused() -> None:
    sink = TargetSink("a")
    with pytest.raises(ConfigurationError, match="given first: str"):
        Output("sink")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="given first: the class TargetSink"):
        Output(TargetSink)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be a function of a DataFrame, not str"):
        Output(sink, "sum")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="'DISK_ONLY' or 'MEMORY_AND_DISK'; got 'HEAP'"):
        checked_persist("HEAP")
    assert sinks_of([sink, Output(sink), 3]) == [sink, sink, 3]
