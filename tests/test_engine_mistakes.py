"""Mistakes in functions and states: each is refused in words that name the operator, and none changes rows silently."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import (
    ListState,
    MapState,
    OperatorState,
    ProcessFunction,
    RestartStrategy,
    SequenceSource,
    ValueState,
)
from onceward.core.engine.state.keyed import KeyScope, pack, unpack
from onceward.core.engine.state.keys import KeyEncoder, encode_key, normal
from onceward.core.engine.state.memory import MemoryTable
from onceward.core.errors import OperatorError

from .engine_kit import pipeline
from .test_engine_reuse import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

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
