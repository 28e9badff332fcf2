"""Mistakes in functions and states: each is refused in words that name the operator, and none changes rows silently."""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import (
    ListState,
    MapState,
    OperatorState,
    ProcessFunction,
    ReducingState,
    RestartStrategy,
    SequenceSource,
    ValueState,
)
from onceward.core.engine.state.keyed import KeyScope, pack, unpack
from onceward.core.engine.state.keys import KeyEncoder, encode_key, normal
from onceward.core.engine.state.memory import MemoryTable
from onceward.core.errors import ConfigurationError, LifecycleError, OperatorError

from .engine_kit import Rows, pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Record = dict[str, Any]
ROWS = [{"i": i} for i in range(4)]


def result(kind: str, function: Any, *, keyed: bool = False, **options: Any) -> list[Record]:
    """The rows that a function gives."""
    sink, made = Rows(), pipeline("mistaken", restart=RestartStrategy.none())
    stream = made.source(SequenceSource(ROWS), uid="source")
    stream = stream.key_by("i") if keyed else stream
    getattr(stream, kind)(function, uid="myop", **options).sink(sink)
    made.run()
    return sink.rows


# States


class Twins(ProcessFunction):
    a = b = ValueState(default=0)
    c = d = ListState[int]()
    e = f = MapState[str, int]()
    g = h = OperatorState[int]()

    def process(self, record: Record, context: Any) -> Iterator[Record]:  # noqa: ARG002 - signature
        self.a.set(1)
        self.b.set(10)
        self.c.append(2)
        self.e.put("x", 3)
        self.g.append(4)
        yield {"a": self.a.get(), "b": self.b.get(), "d": self.d.get(), "f": self.f.get("x", 0), "h": self.h.get()}


def test_one_object_under_two_names_is_two_states():
    assert result("process", Twins(), keyed=True)[0] == {"a": 1, "b": 10, "d": [], "f": 0, "h": []}


@pytest.mark.parametrize("items", ["abc", b"abc", {"a": 1}, 7, None], ids=repr)
@pytest.mark.parametrize("state", ["keyed", "of_subtask"])
def test_a_list_state_takes_a_list(state: str, items: Any):
    class Text(ProcessFunction):
        keyed = ListState[Any]()
        of_subtask = OperatorState[Any]()

        def process(self, record: Record, context: Any) -> Iterator[Record]:  # noqa: ARG002 - signature
            getattr(self, state).set(items)
            yield {"items": getattr(self, state).get()}

    with pytest.raises(OperatorError, match=rf"operator myop.*state '{state}' is a list: set takes a list of items"):
        result("process", Text(), keyed=True)


@pytest.mark.parametrize("items", [["a", "b"], ("a", "b"), iter(["a", "b"])], ids=["list", "tuple", "iterator"])
def test_whatever_yields_items_is_a_list(items: Any):
    state = ListState[Any]().bound(scope(), "items")
    state.set(items)
    state.append("c")
    assert state.get() == ["a", "b", "c"]


def test_a_list_of_the_subtask_holds_copies():
    state, first, second = OperatorState[Any]().bound([], "items"), {"n": [1]}, {"n": [2]}
    state.set([first])
    state.append(second)
    first["n"].append(9)
    second["n"].append(9)
    state.get()[0]["n"].append(9)
    assert state.get() == [{"n": [1]}, {"n": [2]}]


# Keys


def scope() -> KeyScope:
    """Under some key."""
    entered = KeyScope(MemoryTable(range(128), "t"), range(128), 128, lambda: 0.0)
    entered.enter("k", pack("k"))
    return entered


OTHER_NAN = unpack(b"\xcb\xff\xf8\x00\x00\x00\x00\x00\x01")
FLOATS = st.sampled_from([0.0, -0.0, math.nan, OTHER_NAN, -math.nan, 1.0, math.inf])
LISTS = st.lists(FLOATS, min_size=1, max_size=2)
PAIRS = st.one_of(
    st.tuples(st.just(pa.float64()), FLOATS, FLOATS),
    st.tuples(st.just(pa.list_(pa.float64())), LISTS, LISTS),
    st.tuples(st.just(pa.list_(pa.list_(pa.float64()))), st.lists(LISTS, max_size=2), st.lists(LISTS, max_size=2)),
)


def alike(left: Any, right: Any) -> bool:
    """Equal, or both NaN."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(alike, left, right))
    return type(left) is type(right) and (left == right or (left != left and right != right))  # noqa: PLR0124 - NaN


@given(pair=PAIRS)
def test_keys_that_are_equal_are_one_key_everywhere(pair: tuple[pa.DataType, Any, Any]):
    """In a map, and in key_by: there in one batch or in two."""
    kind, left, right = pair
    entries = MapState[Any, int]().bound(scope(), "entries")
    entries.put(left, 1)
    entries.put(right, 2)
    assert (len(list(entries.items())) == 1) is alike(left, right)
    assert entries.get(right) == 2
    entries.remove(right)
    assert (entries.get(left) is None) is alike(left, right)
    assert (encode_key(normal(left)) == encode_key(normal(right))) is alike(left, right)
    batch = pa.RecordBatch.from_arrays([pa.array([left, right], kind)], ["k"])
    encoder = KeyEncoder(["k"])
    together, alone = encoder.distinct(batch), [encoder.distinct(batch.slice(at, 1)) for at in range(2)]
    assert together.encoded == [*dict.fromkeys(one.encoded[0] for one in alone)]
    assert repr(together.values[0]) == repr(alone[0].values[0])


def test_the_entry_of_minus_zero_that_an_older_version_stored_is_that_of_zero():
    entered = scope()
    entries = MapState[float, str]().bound(entered, "entries")
    entered.table.put(entered.row("entries"), pack("old"), pack(-0.0))
    assert entries.get(0.0) == entries.get(-0.0) == "old"
    entries.put(0.0, "new")
    assert [value for _, value in entries.items()] == ["new"]
    entered.table.put(entered.row("entries"), pack("old"), pack(-0.0))
    entries.remove(0.0)
    assert list(entries.items()) == []


# Functions that nobody waits for


async def later(*_: Any) -> Any:
    return False


async def several(*_: Any) -> Any:
    yield {}


def generator(*_: Any) -> Iterator[bool]:
    yield False


class Later:
    """An object that can be called, and whose call does nothing."""

    async def __call__(self, record: Record) -> bool:  # noqa: ARG002 - signature
        return False


KINDS = ["map", "filter", "flat_map", "map_batches"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "function", [later, several, Later(), partial(later, 1)], ids=["def", "yield", "call", "partial"]
)
def test_an_async_function_is_refused_before_the_start(kind: str, function: Any):
    with pytest.raises(ConfigurationError, match=r"operator myop: .* is async, so a call of it does nothing"):
        result(kind, function)


@pytest.mark.parametrize("kind", ["map", "filter", "map_batches"])
def test_a_generator_is_refused_where_it_does_nothing(kind: str):
    with pytest.raises(ConfigurationError, match=r"operator myop: generator is a generator, so a call"):
        result(kind, generator)


def test_an_async_mask_is_refused():
    with pytest.raises(ConfigurationError, match=r"operator myop: later is async"):
        result("filter", later, batches=True)


class Method(ProcessFunction):
    def process(self, record: Record, context: Any) -> Any:  # noqa: ARG002 - signature
        return [record]


@pytest.mark.parametrize(
    "method", ["open", "process", "on_timer", "on_end", "snapshot", "on_checkpoint_complete", "finish", "close"]
)
@pytest.mark.parametrize("function", [later, several])
def test_an_async_method_of_a_function_is_refused(method: str, function: Any):
    with pytest.raises(ConfigurationError, match=rf"operator myop: Async\.{method} is async"):
        result("process", type("Async", (Method,), {method: function})())


@pytest.mark.parametrize("method", ["open", "on_checkpoint_complete", "close"])
def test_a_method_that_is_only_called_is_no_generator(method: str):
    with pytest.raises(ConfigurationError, match=rf"operator myop: Lazy\.{method} is a generator"):
        result("process", type("Lazy", (Method,), {method: generator})())


def test_an_async_reduce_is_refused():
    with pytest.raises(ConfigurationError, match=r"operator myop: the function of state 'total' is async"):
        result("process", type("Reducing", (Method,), {"total": ReducingState(later)})())


@pytest.mark.parametrize("method", ["validate", "read", "latest"])
def test_an_async_source_is_refused(method: str):
    source = type("Late", (SequenceSource,), {method: later})(ROWS)
    made = pipeline("mistaken")
    made.source(source, uid="late").sink(Rows())
    with pytest.raises(ConfigurationError, match=rf"operator late: Late\.{method} is async"):
        made.start()


@pytest.mark.parametrize(
    "answer", [later, generator, object, lambda: result], ids=["coroutine", "generator", "object", "function"]
)
def test_an_answer_that_is_always_true_is_no_answer_of_a_predicate(answer: Callable[[], Any]):
    with pytest.raises(OperatorError, match=r"operator myop.*filter's function must return True or False, not \w+"):
        result("filter", lambda _: answer())


@pytest.mark.parametrize(("answer", "kept"), [(0, 0), (2, 4), ("", 0), (None, 0), ([0], 4), (np.bool_(False), 0)])
def test_whatever_python_takes_for_true_or_false_is_an_answer(answer: Any, kept: int):
    assert len(result("filter", lambda _: answer)) == kept


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("map", later),
        ("map", lambda: {"value": [later()]}),
        ("flat_map", later),
        ("flat_map", lambda: [later()]),
        ("map_batches", later),
    ],
    ids=["map", "value", "flat_map", "item", "map_batches"],
)
def test_a_coroutine_is_no_result(kind: str, answer: Callable[[], Any]):
    with pytest.raises(OperatorError, match=r"operator myop.*(not|a) coroutine"):
        result(kind, lambda _: answer())


def test_a_coroutine_is_no_result_of_a_function_with_state():
    with pytest.raises(OperatorError, match=r"operator myop.*must return or yield records, not coroutine"):
        result("process", type("Late", (Method,), {"process": lambda *_: later()})())


@pytest.mark.parametrize("method", ["open", "on_checkpoint_complete"])
def test_a_method_that_returns_a_coroutine_has_not_done_its_work(method: str):
    with pytest.raises(OperatorError, match=r"operator myop.*it returned a coroutine, for which nobody waits"):
        result("process", type("Late", (Method,), {method: lambda *_: later()})())


@pytest.mark.parametrize("method", ["write", "flush", "close"])
def test_a_sink_that_returns_a_coroutine_has_not_done_its_work(method: str):
    made = pipeline("mistaken", restart=RestartStrategy.none())
    sink = type("LateRows", (Rows,), {method: lambda *_: later()})()
    made.source(SequenceSource(ROWS), uid="source").sink(sink)
    with pytest.raises(LifecycleError, match=rf"{method} of LateRows returned a coroutine, for which nobody waits"):
        made.run()


# Functions that cannot be copied


class Locked(Method):
    def __init__(self) -> None:
        self.name, self.lock = "locked", threading.Lock()


def test_a_function_that_cannot_be_copied_is_refused_and_not_started_again_and_again(caplog: pytest.LogCaptureFixture):
    made = pipeline("mistaken")
    made.source(SequenceSource(ROWS), uid="source").process(Locked(), uid="myop").sink(Rows())
    words = r"operator myop: .*Locked, which cannot be copied because of its attribute 'lock': .*open\(\)"
    with pytest.raises(ConfigurationError, match=words):
        made.start()
    assert "restarts" not in caplog.text
    assert made.checkpoints == []


def test_a_state_is_an_attribute_of_the_class():
    function = Method()
    function.total = ValueState(0)  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"operator myop: state 'total' was made in a method.*class Method"):
        result("process", function)
