"""A record is read as it was returned, whatever travels with it, and however the stream is cut into batches."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.core import ListState, MemoryBackend, ProcessFunction, ValueState
from onceward.core.engine import logic
from onceward.core.engine.channels import TaskId, by_key
from onceward.core.engine.logic import Guarded
from onceward.core.engine.mixed_records import MOST_SHAPES, cut_by_shape, records_of
from onceward.core.engine.records import batches
from onceward.core.engine.state.keyed import KeyScope
from onceward.core.engine.state.keys import KeyEncoder, encode_key
from onceward.core.errors import OperatorError, SchemaError
from onceward.sources import SequenceSource

from .engine_kit import pipeline, typed
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

EAST = timezone(timedelta(hours=5))
EARLIEST, LATEST = datetime(1900, 1, 1), datetime(2200, 1, 1)  # noqa: DTZ001
TIMES = st.datetimes(EARLIEST, LATEST) | st.datetimes(EARLIEST, LATEST, timezones=st.sampled_from([UTC, EAST]))
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
    | st.binary(max_size=3)
    | st.dates()
    | TIMES.map(lambda time: time.replace(fold=0))
    | st.decimals(-1000, 1000, allow_nan=False, places=2)
    | st.decimals(-1000, 1000, allow_nan=False, places=4)
)
NAMES = st.sampled_from(["a", "b", "c"])
ONE_TYPE = st.lists(st.none() | st.integers(-5, 5)) | st.lists(st.none() | st.text("ab", max_size=2))
VALUES = st.recursive(PLAIN | ONE_TYPE, lambda inner: st.dictionaries(NAMES, inner, max_size=2), max_leaves=4)
RECORDS = st.lists(st.dictionaries(NAMES, VALUES, max_size=3), max_size=12)
guarded = Guarded(TaskId("map", 0), None)


def typed_all(records: Iterable[Any]) -> list[Any]:
    return [typed(record) for record in records]


def read(records: list[dict[str, Any]]) -> list[Any]:
    return [typed(record) for batch in guarded.batch(records) for record in records_of(batch)]


def cut(records: list[dict[str, Any]]) -> list[Any]:
    """As operators read them that need columns of one type each."""
    parts = [part for batch in guarded.batch(records) for part in cut_by_shape(batch)]
    return [typed(record) for part in parts for record in part.to_pylist()]


@given(RECORDS)
def test_each_record_is_read_as_it_was_returned(records: list[dict[str, Any]]) -> None:
    assert read(records) == cut(records) == [typed(record) for record in records]


@given(RECORDS, st.data())
def test_each_record_is_read_as_it_was_returned_in_a_part_of_a_batch(
    records: list[dict[str, Any]], data: st.DataObject
) -> None:
    for batch in guarded.batch(records):
        whole = records_of(batch)
        begin = data.draw(st.integers(0, len(whole)))
        rows = data.draw(st.integers(0, len(whole) - begin))
        chosen = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
        part = batch.slice(begin, rows)
        assert typed_all(records_of(part)) == typed_all(whole[begin : begin + rows])
        part = part.filter(pa.array(chosen, pa.bool_()))
        expected = [record for record, chosen in zip(whole[begin : begin + rows], chosen, strict=True) if chosen]
        assert typed_all(records_of(part)) == typed_all(expected)
        assert typed_all(one for cut in cut_by_shape(part) for one in cut.to_pylist()) == typed_all(expected)


@given(st.lists(st.sampled_from([3, 3.5, 3.0, "3", b"3", None, True])), st.integers(1, 4))
def test_each_record_reaches_the_subtask_of_its_key_whatever_travels_with_it(keys: list[Any], subtasks: int) -> None:
    part = by_key(KeyEncoder(["k"]), 8)
    together, alone = [[]] * subtasks, [[]] * subtasks
    for records, into in [([{"k": key, "n": n} for n, key in enumerate(keys)], together)] + [
        ([{"k": key, "n": n}], alone) for n, key in enumerate(keys)
    ]:
        for batch in guarded.batch(records):
            for subtask, rows in part(batch, subtasks):
                into[subtask] = into[subtask] + records_of(rows)
    assert [typed_all(records) for records in together] == [typed_all(records) for records in alone]


@given(st.lists(st.sampled_from([3, 3.5, 3.0, "3", None]), min_size=1))
def test_a_key_is_encoded_alike_whatever_travels_with_it(keys: list[Any]) -> None:
    encoder = KeyEncoder(["k"])
    for batch in guarded.batch([{"k": key} for key in keys]):
        found = encoder.distinct(batch)
        records = records_of(batch)
        for code, record in zip(found.codes.to_pylist(), records, strict=True):
            assert found.encoded[code] == encode_key(record["k"])
            assert typed(found.values[code]) == typed(record["k"])


@given(RECORDS, st.data())
def test_any_cut_into_batches_gives_the_same(records: list[dict[str, Any]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(records)))
    assert read(records[:cut]) + read(records[cut:]) == read(records)


@pytest.mark.parametrize(
    "records",
    [
        [{"v": 3}, {"v": 3.5}],
        [{"v": "a"}, {"v": b"b"}],
        [{"v": True}, {"v": 2}],
        [{"v": 2**62 + 1}, {"v": 0.5}],
        [{"tags": {"a": 1}}, {"tags": {"b": 2}}],
        [{"a": 1}, {"a": 1, "b": 2}, {}],
        [{}],
        [{"v": []}, {"v": [1]}, {"v": None}, {"v": [None, 2]}, {"v": [2.5]}],
        [{"v": datetime(2026, 1, 1)}, {"v": datetime(2026, 1, 1, tzinfo=EAST)}, {"v": date(2026, 1, 1)}],  # noqa: DTZ001
        [{"v": Decimal("1.5")}, {"v": Decimal("1.25")}],
        [{"v": [1]}, {"v": [2.5]}],
    ],
)
def test_what_one_arrow_type_would_alter_is_kept(records: list[dict[str, Any]]) -> None:
    assert read(records) == [typed(record) for record in records]


def test_arrays_of_objects_are_read_as_lists_of_what_they_hold() -> None:
    records = [{"v": np.array([1], object)}, {"v": np.array([2.5], object)}]
    assert read(records) == [typed({"v": [1]}), typed({"v": [2.5]})]


def test_times_are_those_of_python_or_refused_beside_other_records_too() -> None:
    records = [{"v": np.datetime64("2026-01-01T00:00:00.000001000")}, {"v": 1}]
    assert read(records) == [typed({"v": datetime(2026, 1, 1, 0, 0, 0, 1)}), typed({"v": 1})]  # noqa: DTZ001
    with pytest.raises(SchemaError, match="fraction of a microsecond"):
        read([{"v": np.datetime64("2026-01-01T00:00:00.000000001")}, {"v": 1}])


def test_what_a_user_says_of_a_batch_does_not_make_it_a_mixed_one() -> None:
    schema = pa.schema({"n": pa.int64()}, {b"onceward.records": b"mixed"})
    batch = pa.RecordBatch.from_pylist([{"n": 1}], schema=schema)
    assert records_of(batch) == [{"n": 1}]


def test_records_of_one_shape_share_a_batch() -> None:
    assert [batch.num_rows for batch in guarded.batch([{"v": n if n % 3 else None} for n in range(100)])] == [100]
    assert [batch.num_rows for batch in guarded.batch([{"v": [n] if n % 3 else []} for n in range(100)])] == [100]


def test_records_of_changing_shapes_share_a_batch() -> None:
    records = [{"v": n} if n % 2 else {"v": n / 2} for n in range(100)]
    assert [batch.num_rows for batch in guarded.batch(records)] == [100]
    assert [batch.num_rows for batch in guarded.batch([{"v": 1}] * 200 + [{"v": 1.5}] * 200)] == [200, 200]


def test_there_may_be_any_number_of_shapes() -> None:
    records = [{f"field{n}": n} for n in range(2 * MOST_SHAPES + 10)]
    assert read(records) == cut(records) == [typed(record) for record in records]
    assert [batch.num_rows for batch in guarded.batch(records)] == [MOST_SHAPES, MOST_SHAPES, 10]


@pytest.mark.parametrize("bad", [{"n": 1, "v": [1, 2.5]}, {"n": 1, "v": {"w": [{"a": 1}, {"b": 2}]}}])
def test_a_list_that_would_be_altered_is_refused_with_its_record_and_field(bad: dict[str, Any]) -> None:
    with pytest.raises(OperatorError, match=r"field 'v.*schema=.*'n': 1"):
        guarded.batch([{"n": 0, "v": [1]}, bad])


@pytest.mark.parametrize("bad", [{"n": 7, "v": 2**64}, {"n": 7, "v": object()}, {"n": 7, "v": "\ud800"}])
@pytest.mark.parametrize("schema", [None, pa.schema({"n": pa.int64(), "v": pa.int64()})])
def test_the_record_that_cannot_be_converted_is_named(bad: dict[str, Any], schema: pa.Schema | None) -> None:
    with pytest.raises(OperatorError, match="'n': 7"):
        Guarded(TaskId("map", 0), schema).batch([{"n": 0, "v": 1}, bad, {"n": 8, "v": 2}])


def test_what_is_too_much_for_one_batch_becomes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with more than 2 GiB of text, of which Arrow makes several arrays."""

    def few(records: Sequence[Any], schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        if len(records) > 3:
            raise TypeError("Cannot convert pyarrow.lib.ChunkedArray to pyarrow.lib.Array")
        return batches(records, schema)

    monkeypatch.setattr(logic, "batches", few)
    records = [{"n": n} for n in range(10)]
    assert read(records) == [typed(record) for record in records]


class Validates(TargetSink):
    asked = 0

    def validate(self, schema: pa.Schema) -> None:
        self.asked += 1
        super().validate(schema)


def test_a_sink_is_asked_once_for_each_shape_of_records() -> None:
    target, p = Target(), pipeline()
    sink = Validates(target)
    source = SequenceSource([{"n": n} for n in range(100)])
    p.source(source).map(lambda r: r if r["n"] % 2 else {"n": r["n"], "m": 1}).sink(sink)
    p.run()
    assert [row.get("m") for row in sorted(target.rows, key=lambda row: row["n"])] == [1, None] * 50
    assert sink.asked == 2


class Counts(ProcessFunction):
    seen = ValueState(0)

    def process(self, record: dict[str, Any], context: Any) -> list[dict[str, Any]]:  # noqa: ARG002 - signature
        self.seen.set(self.seen.get() + 1)
        return [{"key": repr(context.key), "seen": self.seen.get()}]


@settings(max_examples=15)
@given(st.lists(st.sampled_from([3, 3.5, "3", 4]), min_size=1, max_size=8), st.integers(1, 5))
def test_state_is_found_under_the_key_that_was_returned(keys: list[Any], batch_rows: int) -> None:
    target, p = Target(), pipeline()
    source = SequenceSource([{"n": n} for n in range(len(keys))], batch_rows=batch_rows)
    keyed = p.source(source).map(lambda record: {"k": keys[record["n"]]}).key_by("k")
    keyed.process(Counts(), uid="count").sink(TargetSink(target))
    p.run()
    expected = [{"key": repr(key), "seen": keys[: at + 1].count(key)} for at, key in enumerate(keys)]
    assert sorted(target.rows, key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("before", [0, 1, 15, 16, 65_535, 65_536])
def test_an_item_is_appended_to_a_list_of_any_length(before: int) -> None:
    scope = KeyScope(MemoryBackend().open(TaskId("list", 0), range(8), [], None), range(8), 8, lambda: 0.0)
    scope.enter("k", encode_key("k"))
    state = ListState().bound(scope)
    if before:
        state.set(list(range(before)))
    for item in range(before, before + 3):
        state.append(item)
    assert state.get() == list(range(before + 3))
