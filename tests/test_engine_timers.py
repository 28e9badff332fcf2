"""Timers fire once, when they are due, and what was dropped or moved takes no memory; keys have an end, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core import CheckpointConfig, MapState, MemoryBackend, ProcessFunction, RocksDBBackend, ValueState
from onceward.core.engine.channels import TaskId
from onceward.core.engine.state.keyed import KeyScope
from onceward.core.engine.state.keys import encode_key
from onceward.core.log import MemoryStore
from onceward.sources import SequenceSource

from .engine_kit import Slowly, Target, TargetSink, pipeline, reach

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = range(8)
FOREVER = 1e12
STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "drop"]), st.sampled_from("ab"), st.integers(1, 5))
    | st.tuples(st.just("pass"), st.just(""), st.integers(1, 5)),
    max_size=200,
)


def a_scope(table: Any = None) -> KeyScope:
    table = MemoryBackend().open(TaskId("timers", 0), GROUPS, [], None) if table is None else table
    return KeyScope(table, GROUPS, len(GROUPS), lambda: 0.0)


def due(scope: KeyScope, now: float) -> set[tuple[str, float]]:
    fired: list[tuple[str, float]] = []
    while (at := scope.enter_due(now)) is not None:
        fired.append((scope.key, at))
        scope.leave()
    assert len(set(fired)) == len(fired)
    return set(fired)


@given(STEPS, st.integers(1, 200))
def test_timers_are_those_that_were_set_and_not_dropped_whatever_was_done_before(steps: Any, restart_at: int):
    scope, pending, now = a_scope(), set[tuple[str, float]](), 0.0
    for number, (what, key, at) in enumerate(steps):
        if number == restart_at:
            scope = a_scope(scope.table)
        if what == "pass":
            now = max(now, float(at))
            assert due(scope, now) == {timer for timer in pending if timer[1] <= now}
            pending = {timer for timer in pending if timer[1] > now}
        else:
            scope.enter(key, encode_key(key))
            (scope.set_timer if what == "set" else scope.drop_timer)(at)
            (pending.add if what == "set" else pending.discard)((key, float(at)))
        assert scope.next_timer() == min((at for _, at in pending), default=None)
    assert due(scope, FOREVER) == pending


def test_a_session_timer_that_moves_with_each_record_takes_the_memory_of_one():
    scope, last = a_scope(), dict[int, float]()
    for n in range(50_000):
        key = n % 10
        scope.enter(key, encode_key(key))
        if key in last:
            scope.drop_timer(last[key])
        last[key] = FOREVER + n
        scope.set_timer(last[key])
    assert scope.timers == 10
    assert scope.entries < 500
    assert due(scope, 2 * FOREVER) == {*last.items()}


class Window(ProcessFunction):
    """Sums of windows that a timer would end."""

    total = ValueState(0)
    parts = MapState()

    def process(self, record: dict[str, Any], context: Any) -> Any:
        self.total.set(self.total.get() + record["v"])
        self.parts.put(record["n"], 1)
        context.timer_at(FOREVER)
        return ()

    def on_end(self, key: Any, context: Any) -> Any:
        assert context.key == key
        yield {"k": key, "total": self.total.get()}
        self.total.clear()
        self.parts.clear()
        context.drop_timer(FOREVER)

    def finish(self, context: Any) -> Any:
        assert context.key is None
        yield {"k": "finish", "total": 0}


def windows(target: Target, source: Any, backend: Any, store: Any, parallelism: int = 3) -> Any:
    p = pipeline(backend=backend, store=store, checkpoint=CheckpointConfig())
    p.source(source, uid="rows").key_by("k").process(Window(), uid="window", parallelism=parallelism).sink(
        TargetSink(target)
    )
    return p


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_at_the_end_of_the_input_each_key_with_state_has_its_end_once(tmp_path: Path, backend: str):
    rows = [{"k": f"k{n % 300}", "n": n, "v": 1} for n in range(900)]
    made = MemoryBackend() if backend == "memory" else RocksDBBackend(tmp_path)
    target = Target()
    windows(target, SequenceSource(rows), made, MemoryStore()).run()
    ends = sorted((row["k"], row["total"]) for row in target.rows if row["k"] != "finish")
    assert ends == sorted((f"k{n}", 3) for n in range(300))
    assert target.counts("k")["finish"] == 3


def test_keys_end_when_a_run_is_drained_and_not_when_it_is_suspended(tmp_path: Path):
    rows = [{"k": f"k{n % 3}", "n": n, "v": 1} for n in range(100)]
    store, target, backend = MemoryStore(), Target(), MemoryBackend()
    for drain in (False, True):
        source = Slowly(rows, batch_rows=3)
        p = windows(target, source, backend, store)
        reach(source, p.start(), 2)
        p.stop_with_savepoint(tmp_path / f"save-{drain}", drain=drain, timeout=20)
        assert p.wait(20)
        assert (sorted(row["total"] for row in target.rows) == [0, 0, 0, 4, 4, 4]) is drain


def test_an_error_at_a_keys_end_names_the_key():
    class Fails(Window):
        def on_end(self, key: Any, context: Any) -> Any:  # noqa: ARG002 - signature
            raise ValueError("no end")

    p = pipeline(checkpoint=CheckpointConfig())
    p.setup = p.setup._replace(restart=type(p.setup.restart).none())
    p.source(SequenceSource([{"k": "a", "n": 1, "v": 1}])).key_by("k").process(Fails(), uid="w").sink(
        TargetSink(Target())
    )
    with pytest.raises(Exception, match=r"operator w, subtask 0: ValueError: no end; at \{'end of': 'a'\}"):
        p.run()
