"""The hash of all that a sink was handed: equal for equal rows however they came, and for no others."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.handed_rows import Handed
from onceward.core.contract.proof import total
from onceward.core.contract.row_hash import RowHash, row_hashes
from onceward.core.contract.transaction import Committable, WriteContext

from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable

POINT = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))])
TYPES: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "whole": (pa.int64(), lambda r: r.randrange(-3, 3)),
    "text": (pa.string(), lambda r: r.choice(["", "a", "b", "é", "a long text of more than eight bytes"])),
    "bytes": (pa.binary(), lambda r: r.choice([b"", b"\0", b"\0\0", b"a"])),
    "number": (pa.float64(), lambda r: r.choice([0.0, -0.0, 1.5])),
    "decimal": (pa.decimal128(9, 2), lambda r: Decimal(r.randrange(-300, 300)) / 100),
    "nanoseconds": (pa.timestamp("ns", "UTC"), lambda r: r.randrange(5)),
    "time": (pa.time64("ns"), lambda r: r.randrange(5)),
    "duration": (pa.duration("ns"), lambda r: r.randrange(5)),
    "day": (pa.date32(), lambda r: dt.date(2020, 1, r.randrange(1, 4))),
    "interval": (pa.month_day_nano_interval(), lambda r: (r.randrange(2), r.randrange(2), r.randrange(2))),
    "list": (pa.list_(pa.int64()), lambda r: [r.choice([None, 1, 2]) for _ in range(r.randrange(3))]),
    "lists": (pa.list_(pa.list_(pa.string())), lambda r: [[*"ab"[: r.randrange(3)]] for _ in range(r.randrange(3))]),
    "pair": (pa.list_(pa.int64(), 2), lambda r: [r.choice([None, 1, 2]), r.choice([1, 2])]),
    "struct": (POINT, lambda r: {"x": r.choice([None, 1, 2]), "y": r.choice([None, [], ["a"], ["a", None]])}),
    "structs": (pa.list_(POINT), lambda r: [{"x": r.randrange(2), "y": None}] * r.randrange(3)),
    "map": (
        pa.map_(pa.string(), POINT),
        lambda r: [(k, {"x": r.randrange(2), "y": []}) for k in "ab"[: r.randrange(3)]],
    ),
    "uuid": (pa.uuid(), lambda r: bytes([r.randrange(3)]) * 16),
    "nothing": (pa.null(), lambda _: None),
}
"""Types, and how to make a value of each out of few ones, so that equal and almost equal rows meet."""


def handed(*batches: pa.RecordBatch, subtask: int | None = None) -> str:
    found = Handed(subtask)
    for batch in batches:
        with found.add(batch):
            pass
    return found.hash


def column(values: Any, kind: pa.DataType | None = None) -> str:
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return handed(pa.record_batch({"v": array}))


def random_rows(rng: random.Random, names: list[str], count: int) -> list[tuple[Any, ...]]:
    return [tuple(None if rng.random() < 0.2 else TYPES[name][1](rng) for name in names) for _ in range(count)]


def batch_of(names: list[str], rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array([row[n] for row in rows], TYPES[name][0]) for n, name in enumerate(names)]
    return pa.RecordBatch.from_arrays(columns, names=names)


@pytest.mark.parametrize("seed", range(60))
def test_rows_have_equal_hashes_if_and_only_if_they_are_equal(seed: int) -> None:
    rng = random.Random(seed)
    names = rng.sample(list(TYPES), rng.randrange(1, 4))
    rows = random_rows(rng, names, rng.choice([1, 2, 5]))
    other = list(rows)
    if rng.random() < 0.7:  # one value of one row is another one, or perhaps the same
        at, field = rng.randrange(len(rows)), rng.randrange(len(names))
        other[at] = (*other[at][:field], TYPES[names[field]][1](rng), *other[at][field + 1 :])
    rng.shuffle(other)
    same = sorted(map(repr, rows)) == sorted(map(repr, other))
    cut = rng.randrange(len(rows) + 1)
    parts = batch_of(names, other)
    order = rng.sample(range(len(names)), len(names))
    shuffled = [parts.slice(cut).select([names[n] for n in order]), parts.slice(0, cut)]
    assert (handed(batch_of(names, rows)) == handed(*shuffled)) is same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([[1], [2, 3]]), pa.array([[1, 2], [3]])),
        (pa.array([[]], pa.list_(pa.int64())), pa.array([None], pa.list_(pa.int64()))),
        (pa.array([[None]], pa.list_(pa.int64())), pa.array([[]], pa.list_(pa.int64()))),
        (pa.array([[[], [1]]]), pa.array([[[1], []]])),
        (pa.array([{"x": None}], pa.struct([("x", pa.int64())])), pa.array([None], pa.struct([("x", pa.int64())]))),
        (pa.array([{"x": 1}]), pa.array([{"x": 1, "y": None}])),
        (pa.array([{"x": 1}]), pa.array([{"y": 1}])),
        (pa.array([{"x": 1, "y": 2}]), pa.array([{"x": 2, "y": 1}])),
        (pa.array([{}], pa.struct([])), pa.array([None], pa.struct([]))),
        (pa.array([1], pa.int64()), pa.array([1], pa.int32())),
        (pa.array([1], pa.int64()), pa.array([True])),
        (pa.array([1], pa.int64()), pa.array([1], pa.date32())),
        (pa.array([1], pa.timestamp("us")), pa.array([1], pa.timestamp("us", "UTC"))),
        (pa.array([1], pa.timestamp("ns")), pa.array([1], pa.timestamp("us"))),
        (pa.array(["a"]), pa.array([b"a"])),
        (pa.array([["a"]]), pa.array([[b"a"]])),
        (pa.array([Decimal("1.5")]), pa.array([Decimal("1.50")])),
        (pa.array([0.0]), pa.array([-0.0])),
    ],
    ids=str,
)
def test_almost_the_same_is_not_the_same(one: pa.Array, other: pa.Array) -> None:
    assert column(one) != column(other)


def test_a_column_of_nulls_is_not_a_missing_one() -> None:
    """The default of a table's column takes the place of one and not of the other."""
    assert handed(pa.record_batch({"a": [1], "b": pa.nulls(1)})) != handed(pa.record_batch({"a": [1]}))


def test_two_columns_of_one_name_are_told_apart() -> None:
    one, two = pa.array([1]), pa.array([2])
    twice = [pa.RecordBatch.from_arrays(columns, names=["a", "a"]) for columns in ([one, two], [two, one])]
    assert handed(twice[0]) != handed(twice[1])


def test_no_column_takes_the_place_of_the_second_one_of_a_name() -> None:
    values = itertools.product([pa.array([1]), pa.array([2])], repeat=3)
    batches = [pa.RecordBatch.from_arrays(list(columns), names=["a", "a", "a 2"]) for columns in values]
    assert len(set(map(handed, batches))) == 8


TEXTS = pa.array(["a", None, "b", "a"])
STRUCTS = pa.array([{"x": 1}, None, {"x": 2}, {"x": 1}])
LISTS = pa.array([[1, 2], None, [], [3]])
PLACES = pa.array([0, None, 1, 0], pa.int8())


@pytest.mark.parametrize(
    ("plain", "spelled"),
    [
        (TEXTS, TEXTS.dictionary_encode()),
        (TEXTS, TEXTS.cast(pa.large_string())),
        (TEXTS, TEXTS.cast(pa.string_view())),
        (TEXTS, pc.call_function("run_end_encode", [TEXTS])),
        (TEXTS, pa.DictionaryArray.from_arrays(PLACES, pa.array(["a", "b"], pa.string_view()))),
        (TEXTS, pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0]), pa.array(["a", None, "b"]))),
        (STRUCTS, pa.DictionaryArray.from_arrays(PLACES, pa.array([{"x": 1}, {"x": 2}]))),
        (LISTS, LISTS.cast(pa.large_list(pa.int64()))),
        (LISTS, pa.array(LISTS.to_pylist(), pa.list_view(pa.int64()))),
        (pa.array([["a"]]), pa.array([["a"]], pa.list_(pa.dictionary(pa.int32(), pa.string())))),
        (pa.array([["a"]]), pa.array([["a"]], pa.list_(pa.large_string()))),
        (pa.array([b"abcd"]), pa.array([b"abcd"], pa.binary(4))),
        (pa.array([[]], pa.list_(pa.null())), pa.array([[]], pa.list_(pa.int64()))),
    ],
    ids=str,
)
def test_spellings_of_a_type_are_alike(plain: pa.Array, spelled: pa.Array) -> None:
    assert column(plain) == column(spelled) != ""


def test_where_a_batch_ends_changes_nothing_even_if_all_of_its_values_are_null() -> None:
    """Arrow gives a column of records without a value another type."""
    together = handed(pa.record_batch({"a": [None, "x"]}))
    assert together == handed(pa.record_batch({"a": pa.nulls(1)}), pa.record_batch({"a": ["x"]}))


@pytest.mark.parametrize("kind", [name for name in TYPES if name != "nothing"])
def test_slices_are_hashed_as_their_rows(kind: str) -> None:
    rows = random_rows(random.Random(kind), [kind], 20)
    whole = batch_of([kind], rows)
    parts = [whole.slice(n, 1) for n in range(20)]
    assert total(map(handed, parts)) == handed(whole) == handed(*reversed(parts))


def test_values_that_nobody_can_look_into_leave_no_hash() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1]), pa.array(["a"])])
    assert column(union) == ""
    assert column([10**15], pa.timestamp("s")) == ""  # more microseconds than 64 bits hold
    assert handed(pa.record_batch({"v": [1]}), pa.record_batch({"v": union})) == ""


def test_rows_without_columns_are_counted() -> None:
    def empty(rows: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))

    assert handed(empty(2)) == handed(empty(1), empty(1)) != handed(empty(1))


def test_where_the_order_decides_each_row_counts_with_its_place() -> None:
    rows = pa.record_batch({"key": [1, 1, 2], "v": ["a", "b", "c"]})
    swapped = rows.take(pa.array([1, 0, 2]))
    assert handed(rows) == handed(swapped)
    assert handed(rows, subtask=0) == handed(rows.slice(0, 1), rows.slice(1), subtask=0)
    assert len({handed(batch, subtask=n) for batch, n in itertools.product((rows, swapped), (0, 1))}) == 4


CONTEXT = WriteContext(pipeline="p", sink="t", log="0" * 8, generation=1, epoch=0, subtask=0)


def prepared(sink: TargetSink, *batches: pa.RecordBatch, heals: bool = True) -> Committable:
    epoch = SubtaskEpoch(sink, msgspec.structs.replace(CONTEXT, heals=heals))
    for batch in batches:
        epoch.write(batch)
    committable = epoch.pre_commit()
    assert committable is not None
    return committable


NESTED = pa.record_batch({"id": [1], "tags": [["a"]]})


def test_each_sink_has_a_hash_of_all_columns_whatever_it_proves_itself() -> None:
    committable = prepared(TargetSink(Target(), "t"), NESTED)
    assert committable.handed == handed(NESTED)
    assert committable.proof is None
    assert Committable.from_json(committable.to_json()) == committable


def test_a_committable_of_an_older_version_has_none() -> None:
    committable = prepared(TargetSink(Target(), "t"), NESTED)
    older = {name: value for name, value in msgspec.to_builtins(committable).items() if name != "handed"}
    read = Committable.from_json(msgspec.json.encode(older))
    assert read == msgspec.structs.replace(committable, handed=msgspec.UNSET)
    assert msgspec.to_builtins(read) == older


def test_nothing_is_hashed_where_nothing_can_be_computed_again() -> None:
    assert prepared(TargetSink(Target(), "t"), NESTED, heals=False).handed is msgspec.UNSET
    without = TargetSink(Target(), "t")
    without.proof = False
    assert prepared(without, NESTED).handed is msgspec.UNSET


def test_a_sum_that_is_known_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(batch: pa.RecordBatch) -> Any:
        made.append(batch.num_rows)
        return row_hashes(batch)

    monkeypatch.setattr("onceward.core.contract.row_hash.row_hashes", counted)
    monkeypatch.setattr("onceward.core.contract.handed_rows.row_hashes", counted)
    batch = pa.record_batch({"id": [1, 2, None], "text": ["a", None, "b"]})
    other = pa.record_batch({"id": [1, 2, None], "text": ["a", None, "b"]})
    alone, at_once, apart = RowHash(), RowHash(), RowHash()
    with Handed().add(batch):
        at_once.add(batch.select(["text", "id"]))
        assert made == [3]
        apart.add(other)  # equal, but elsewhere in memory: nobody knows that it is
        apart.add(batch.select(["id"]))
        apart.add(batch.slice(1))
    assert made == [3, 3, 3, 2]
    alone.add(batch)
    assert alone.proof() == at_once.proof()
    expected = RowHash()
    for piece in (other, batch.select(["id"]), batch.slice(1)):
        expected.add(piece)
    assert apart.proof() == expected.proof()
