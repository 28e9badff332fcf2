"""A state with a time to live keeps a value for so long after it was written, through restarts and restores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core import (
    CheckpointConfig,
    FileBackend,
    ListState,
    MapState,
    MemoryBackend,
    Pipeline,
    ProcessFunction,
    ReducingState,
    RestartStrategy,
    RocksDBBackend,
    ValueState,
)
from onceward.core.engine.channels import TaskId
from onceward.core.engine.start import EngineWorld
from onceward.core.engine.state.keyed import KeyScope
from onceward.core.engine.state.keys import encode_key
from onceward.core.engine.state.ttl import AT_LEAST_PER_SNAPSHOT, CREATED_PER_SWEEP
from onceward.core.errors import ConfigurationError
from onceward.core.log import MemoryStore
from onceward.sources import SequenceSource

from .engine_kit import decided
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GROUPS = range(8)
TASK = TaskId("ttl", 0)
STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "read", "sweep", "snapshot"]), st.sampled_from("ab"), st.integers(0, 4)),
    max_size=60,
)


class Clock:
    """Seconds that tests let pass."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "rocksdb"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    backend = MemoryBackend() if request.param == "memory" else RocksDBBackend(tmp_path)
    made = backend.open(TASK, GROUPS, [], None)
    yield made
    made.close()


@pytest.fixture
def scope(table: Any, clock: Clock) -> KeyScope:
    return KeyScope(table, GROUPS, len(GROUPS), clock)


def bound(scope: KeyScope, state: Any, name: str = "it") -> Any:
    state.name = name
    made = state.bound(scope)
    scope.take_over([made], {})
    return made


def enter(scope: KeyScope, key: Any) -> None:
    scope.leave()
    scope.enter(key, encode_key(key))


def test_a_write_renews_a_value_and_a_read_does_not(scope: KeyScope, clock: Clock):
    state = bound(scope, ValueState(default=0, ttl=10))
    enter(scope, "a")
    state.set(1)
    clock.seconds += 9
    enter(scope, "a")
    assert state.get() == 1
    clock.seconds += 1
    enter(scope, "a")
    assert state.get() == 0
    assert list(scope.table.scan(b"")) == []  # it is removed as it is read
    state.set(2)
    clock.seconds += 9
    enter(scope, "a")
    state.set(3)
    clock.seconds += 9
    enter(scope, "a")
    assert state.get() == 3


def test_time_stands_still_while_a_record_is_handled(scope: KeyScope, clock: Clock):
    state = bound(scope, ValueState[Any](None, ttl=10))
    enter(scope, "a")
    state.set(1)
    clock.seconds += 9
    enter(scope, "a")
    assert state.get() == 1
    clock.seconds += 9
    assert state.get() == 1
    enter(scope, "a")
    assert state.get() is None


def test_a_state_without_a_time_to_live_does_not_look_at_the_clock(scope: KeyScope, clock: Clock):
    state = bound(scope, ValueState[Any](None))
    clock.asked = 0
    for key in range(CREATED_PER_SWEEP + 1):
        enter(scope, key)
        state.set(key)
    scope.freeze(1, full=False).discard()
    assert clock.asked == 0


def test_each_entry_of_a_map_and_each_item_of_a_list_has_its_own_time(scope: KeyScope, clock: Clock):
    entries, items = MapState(ttl=10), ListState(ttl=10)
    entries.name, items.name = "entries", "items"
    entries, items = entries.bound(scope), items.bound(scope)
    scope.take_over([entries, items], {})
    for number in range(3):
        enter(scope, "a")
        entries.put(number, number)
        items.append(number)
        clock.seconds += 4
    enter(scope, "a")
    assert list(entries.items()) == [(1, 1), (2, 2)]
    assert [entries.get(number, "gone") for number in range(3)] == ["gone", 1, 2]
    assert items.get() == [1, 2]
    items.set([7, 8])
    entries.put(1, 5)
    clock.seconds += 6
    enter(scope, "a")
    assert list(entries.items()) == [(1, 5)]
    assert items.get() == [7, 8]
    items.set([])
    entries.clear()
    scope.sweep(None)
    assert list(scope.table.scan(b"")) == []


def test_what_is_reduced_begins_anew(scope: KeyScope, clock: Clock):
    state = bound(scope, ReducingState(lambda one, other: one + other, ttl=10))
    for expected in (5, 10, 5):
        enter(scope, "a")
        state.add(5)
        assert state.get() == expected
        clock.seconds += 4 if expected == 5 else 10


@given(STEPS, st.sampled_from([ValueState, MapState, ListState]))
def test_a_value_is_there_for_exactly_its_time_whatever_else_is_done(steps: Any, kind: Any):
    clock = Clock()
    scope = KeyScope(MemoryBackend().open(TASK, GROUPS, [], None), GROUPS, len(GROUPS), clock)
    made = ValueState[Any](None, ttl=3) if kind is ValueState else kind(ttl=3)
    state, written = bound(scope, made), dict[str, float]()
    read = {ValueState: state.get, MapState: lambda: state.get("k"), ListState: lambda: state.get() or None}
    write = {ValueState: lambda: state.set(1), MapState: lambda: state.put("k", 1), ListState: lambda: state.set([1])}
    for what, key, wait in steps:
        clock.seconds += wait
        enter(scope, key)
        alive = {k: at for k, at in written.items() if at + 3 > clock.seconds}
        if what == "write":
            write[kind]()
            written[key] = clock.seconds
        elif what == "read":
            assert (read[kind]() is not None) is (key in alive)
        elif what == "sweep":
            scope.sweep(1)
        else:
            scope.freeze(1, full=False).discard()
            assert len(list(scope.table.scan(b""))) == len(alive)


@pytest.mark.slow
def test_keys_that_come_no_more_do_not_pile_up(scope: KeyScope, clock: Clock):
    state, entries = ValueState[Any](None, ttl=10), MapState(ttl=10)
    state.name, entries.name = "one", "many"
    state, entries = state.bound(scope), entries.bound(scope)
    scope.take_over([state, entries], {})
    most = 0
    for number in range(40_000):  # 2,000 cells are alive at any time
        enter(scope, number)
        state.set(number)
        entries.put(number, number)
        clock.seconds += 0.01
        if number % 1_000 == 0:
            most = max(most, len(list(scope.table.scan(b""))))
    assert most < 10_000
    clock.seconds += 100
    for snapshot in range(most // AT_LEAST_PER_SNAPSHOT + 2):  # and no new ones come
        scope.freeze(snapshot, full=False).discard()
    assert list(scope.table.scan(b"")) == []


def test_a_key_whose_state_has_expired_has_no_end(scope: KeyScope, clock: Clock):
    state = bound(scope, ValueState[Any](None, ttl=10))
    for key in ("a", "b"):
        enter(scope, key)
        state.set(1)
        clock.seconds += 6
    assert list(scope.each_key()) == ["b"]


@pytest.mark.parametrize("ttl", [0, -1.0, float("nan"), float("inf"), "1 h", True])
@pytest.mark.parametrize(
    "made",
    [
        lambda ttl: ValueState[Any](None, ttl=ttl),
        lambda ttl: ListState(ttl=ttl),
        lambda ttl: MapState(ttl=ttl),
        lambda ttl: ReducingState(max, ttl=ttl),
        lambda ttl: _rows(Pipeline("p")).key_by("k").aggregate({"total": ("v", "sum")}, ttl=ttl),
    ],
)
def test_a_time_to_live_is_a_number_of_seconds(made: Callable[[Any], Any], ttl: Any):
    with pytest.raises(ConfigurationError, match=r"\(ttl=.*\): give a number of seconds from 0\.001 to 1e\+12"):
        made(ttl)


def _rows(p: Pipeline) -> Any:
    return p.source(SequenceSource([{"k": "a", "v": 1}]), uid="rows")


def counting(ttl: float | None) -> ProcessFunction:
    class Counts(ProcessFunction):
        """Counts the rows of each key in each kind of state."""

        one = ValueState(default=0, ttl=ttl)
        items = ListState(ttl=ttl)
        entries = MapState(ttl=ttl)
        forever = ValueState(default=0)

        def process(self, record: dict[str, Any], context: Any) -> Any:
            self.one.set(self.one.get() + 1)
            self.items.append(record["n"])
            self.entries.put(record["n"], None)
            self.forever.set(self.forever.get() + 1)
            counts = self.one.get(), len(self.items.get()), len(list(self.entries.items())), self.forever.get()
            return [{"k": context.key, "counts": list(counts)}]

    return Counts()


class Keeps(ProcessFunction):
    """Gives all numbers that it has seen of each key."""

    def process(self, record: dict[str, Any], context: Any) -> Any:  # noqa: ARG002 - signature
        if (state := getattr(self, "seen", None)) is not None:
            if isinstance(state, ListState):
                state.append(record["n"])
            else:
                state.put(record["n"], None)
        return [
            {
                "seen": None
                if state is None
                else [*(state.get() if isinstance(state, ListState) else dict(state.items()))]
            }
        ]


class Listed(Keeps):
    seen = ListState(ttl=1000)


class ListedForever(Keeps):
    seen = ListState()


class Mapped(Keeps):
    seen = MapState()


@pytest.mark.parametrize("backend", ["files", "rocksdb"])
@pytest.mark.parametrize("between", [Keeps, Mapped])
@pytest.mark.parametrize("kinds", [(Listed, Listed), (Listed, ListedForever), (ListedForever, Listed)])
def test_a_state_that_was_dropped_on_purpose_is_empty_when_it_is_declared_again(
    tmp_path: Path, backend: str, between: type[Keeps], kinds: tuple[type[Keeps], type[Keeps]]
):
    store = MemoryStore()
    seen = []
    for run, kind in enumerate((kinds[0], between, kinds[1])):
        target = Target()
        p = Pipeline("p", store=store, backend=BACKENDS[backend](tmp_path), checkpointing=CheckpointConfig())
        rows = [{"k": "a", "n": n} for n in range(run + 1)]
        p.source(SequenceSource(rows), uid="rows").key_by("k").process(kind(), uid="keeps").sink(TargetSink(target))
        p.run(allow_non_restored_state=run > 0)
        seen += [row["seen"] for row in target.rows]
    assert seen == [[0], [1] if between is Mapped else None, [2]]


BACKENDS: dict[str, Callable[[Path], Any]] = {
    "memory": lambda _: MemoryBackend(),
    "files": lambda path: FileBackend(path / "files"),
    "rocksdb": lambda path: RocksDBBackend(path / "rocksdb"),
}


class Rig:
    """A pipeline whose runs read one row more of each of ten keys, at the time of a clock."""

    def __init__(self, path: Path, kind: str = "process") -> None:
        self.path, self.kind = path, kind
        self.clock, self.store, self.target, self.runs = Clock(), MemoryStore(), Target(), 0

    def run(self, ttl: float | None, *, backend: str = "rocksdb", parallelism: int = 2, **options: Any) -> list[Any]:
        """The counts of the newest rows, which are the same for each key."""
        self.runs += 1
        p = Pipeline(
            "p",
            store=self.store,
            backend=BACKENDS[backend](self.path),
            checkpointing=CheckpointConfig(),
            restart=RestartStrategy.none(),
        )
        p.setup = p.setup._replace(world=EngineWorld(now=self.clock))
        rows = [{"k": n % 10, "n": n // 10} for n in range(10 * self.runs)]
        keyed = p.source(SequenceSource(rows), uid="rows").key_by("k")
        if self.kind == "process":
            counted = keyed.process(counting(ttl), uid="counts", parallelism=parallelism)
        else:
            counted = keyed.aggregate({"counts": ("*", "count")}, ttl=ttl, uid="counts", parallelism=parallelism)
        counted.sink(TargetSink(self.target))
        self.target.take_away()
        p.run(**options)
        counts = [row["counts"] for row in self.target.rows]
        assert len(counts) == 10
        assert counts == counts[:1] * 10
        return counts[0] if self.kind == "process" else [counts[0]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["process", "aggregate"])
def test_the_time_of_a_write_goes_through_restores_and_other_parallelisms(tmp_path: Path, kind: str, backend: str):
    rig = Rig(tmp_path, kind)
    assert rig.run(10, backend=backend)[0] == 1
    rig.clock.seconds += 6
    assert rig.run(10, backend=backend, parallelism=3)[0] == 2
    rig.clock.seconds += 6  # the first items and entries have expired, and the value was renewed
    counts = rig.run(10, backend=backend, parallelism=1)
    assert counts == ([3, 2, 2, 3] if kind == "process" else [3])
    rig.clock.seconds += 10
    counts = rig.run(10, backend=backend, parallelism=2)
    assert counts == ([1, 1, 1, 4] if kind == "process" else [1])


def test_another_time_to_live_counts_from_the_same_writes(tmp_path: Path):
    rig = Rig(tmp_path)
    rig.run(10)
    rig.clock.seconds += 12
    assert rig.run(20) == [2, 2, 2, 2]
    rig.clock.seconds += 3
    assert rig.run(2) == [1, 1, 1, 3]


@pytest.mark.parametrize("kind", ["process", "aggregate"])
def test_state_without_times_is_taken_as_written_at_the_restore(tmp_path: Path, kind: str):
    rig = Rig(tmp_path, kind)
    rig.run(None)
    rig.clock.seconds += 1000
    assert rig.run(10)[0] == 2
    rig.clock.seconds += 9
    assert rig.run(10)[0] == 3
    rig.clock.seconds += 10
    assert rig.run(10)[0] == 1


@pytest.mark.parametrize("kind", ["process", "aggregate"])
def test_a_time_to_live_can_be_taken_away(tmp_path: Path, kind: str):
    rig = Rig(tmp_path, kind)
    rig.run(10)
    rig.clock.seconds += 5
    assert rig.run(None)[0] == 2
    rig.clock.seconds += 1000
    assert rig.run(None, parallelism=3)[0] == 3


@pytest.mark.parametrize(("before", "after"), [("memory", "rocksdb"), ("rocksdb", "files"), ("files", "memory")])
def test_another_backend_takes_the_times_over(tmp_path: Path, before: str, after: str):
    rig = Rig(tmp_path)
    rig.run(10, backend=before)
    rig.clock.seconds += 6
    assert rig.run(10, backend=after) == [2, 2, 2, 2]
    rig.clock.seconds += 6
    assert rig.run(10, backend=after, parallelism=3) == [3, 2, 2, 3]


def test_a_checkpoint_says_which_states_have_times(tmp_path: Path):
    """So that earlier versions, which do not know of times, refuse it and do not read times as values."""
    rig = Rig(tmp_path)
    rig.run(10, backend="memory")
    kinds = {"one": "value with times", "items": "list with times", "entries": "map with times", "forever": "value"}
    assert decided(rig.store).operators["counts"].kinds == kinds
