"""Timers fire once, when they are due, and what was dropped or moved takes no memory; keys have an end, too."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onceward.core import CheckpointConfig, MapState, MemoryBackend, ProcessFunction, RocksDBBackend, ValueState
from onceward.core.engine.channels import TaskId
from onceward.core.engine.state import timers
from onceward.core.engine.state.keyed import KeyScope
from onceward.core.engine.state.keys import encode_key
from onceward.core.engine.state.memory import cells_of
from onceward.core.log import MemoryStore
from onceward.sources import SequenceSource

from .engine_kit import Slowly, pipeline, reach
from .sink_kit import Target, TargetSink

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


TIMES = st.sampled_from([-math.inf, -1e300, -2.5, -1.0, -0.0, 0.0, 5e-324, 1.0, 2.5, 1e300, math.inf])
MANY_STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "set", "set", "drop", "pass"]), st.sampled_from(["a", "ab", 3, ("x", 1)]), TIMES),
    max_size=120,
)


@pytest.fixture(scope="module")
def rocks(tmp_path_factory: pytest.TempPathFactory) -> RocksDBBackend:
    return RocksDBBackend(tmp_path_factory.mktemp("rocks"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(steps=MANY_STEPS, restart_at=st.integers(1, 120))
def test_timers_outside_of_memory_fire_in_the_same_order(
    steps: Any, restart_at: int, rocks: RocksDBBackend, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(timers, "ROOM", 4)
    monkeypatch.setattr(timers, "_WRITTEN_AT_ONCE", 3)
    table = rocks.open(TaskId("timers", 0), GROUPS, [], None)
    outside, inside = a_scope(table), a_scope()
    for number, (what, key, at) in enumerate(steps):
        if number == restart_at:
            outside = a_scope(table)
        for scope in (outside, inside):
            scope.enter(key, encode_key(key))
            {"set": scope.set_timer, "drop": scope.drop_timer, "pass": lambda _: None}[what](at)
        if what == "pass":
            assert in_order(outside, at) == in_order(inside, at)
        assert outside.next_timer() == inside.next_timer()
        assert outside.timers == inside.timers
    assert in_order(outside, math.inf) == in_order(inside, math.inf)
    assert outside.timers == 0
    table.close()


def in_order(scope: KeyScope, now: float) -> list[Any]:
    fired = []
    while (at := scope.enter_due(now)) is not None:
        fired.append((at, scope.key))
    return fired


def test_with_rocksdb_timers_live_outside_of_memory(rocks: RocksDBBackend):
    scope, most = a_scope(rocks.open(TaskId("timers", 0), GROUPS, [], None)), 0
    times = random.Random(7).sample(range(100_000), 50_000)
    for n, at in enumerate(times):
        scope.enter(n, encode_key(n))
        scope.set_timer(at)
        most = max(most, scope.entries)
    assert scope.timers == len(times)
    assert [at for at, _ in in_order(scope, 50_000.0)] == sorted(at for at in times if at <= 50_000)
    for n, at in enumerate(times):
        if at > 50_000:
            scope.enter(n, encode_key(n))
            scope.drop_timer(at)
            most = max(most, scope.entries)
    assert scope.next_timer() is None
    assert most <= timers.ROOM + 1_000
    assert list(scope.table.scan(b"")) == []
    scope.table.close()


def test_a_snapshot_has_timers_as_state_and_not_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """So it is read by earlier versions and other backends, and the order is made anew at a restore."""
    monkeypatch.setattr(timers, "ROOM", 10)
    rocks, cells = RocksDBBackend(tmp_path), []
    for backend in (rocks, MemoryBackend()):
        scope = a_scope(backend.open(TaskId("timers", 0), GROUPS, [], None))
        for n in range(100):
            scope.enter(n, encode_key(n))
            scope.set_timer(float(100 - n))
        for full in (False, True):
            freezing = scope.freeze(1 + full, full=full)
            handle, _ = freezing.write(backend.storage, f"chk-{full}")
            freezing.discard()
            cells.append(sorted(cells_of(handle, backend.storage, GROUPS)))
            restored = a_scope(rocks.open(TaskId("timers", 0), GROUPS, [handle], backend.storage))
            assert [at for at, _ in in_order(restored, FOREVER)] == [float(n) for n in range(1, 101)]
            restored.table.close()
        scope.table.close()
    assert cells == cells[:1] * 4


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
    p = pipeline(backend=backend, store=store, checkpointing=CheckpointConfig())
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

    p = pipeline(checkpointing=CheckpointConfig())
    p.setup = p.setup._replace(restart=type(p.setup.restart).none())
    p.source(SequenceSource([{"k": "a", "n": 1, "v": 1}])).key_by("k").process(Fails(), uid="w").sink(
        TargetSink(Target())
    )
    with pytest.raises(Exception, match=r"operator w, subtask 0: ValueError: no end; at \{'end of': 'a'\}"):
        p.run()
