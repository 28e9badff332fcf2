"""Cases of the conformance suite about rows: equal ones, values that are easily lost, and those that are left out."""

from __future__ import annotations

import datetime as dt
import functools
import inspect
import math
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pyarrow as pa
import pytest

from onceward.core.errors import OncewardError

from .sink_case import SinkCase, not_applicable, numbered, own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.core.contract.transaction import Committable

LONG: Final = 100_000
_TEXTS: Final = (
    *("", " ", " blanks ", 'it\'s "quoted" \\ and \\n', "two\nlines\r\n", "a,b;c\td", "NULL", "null", "\\N", "0", "{}"),
    *("é", "e\u0301", "日本語", "😀", "\u2028", "\ufeffmark", "a\0b", "x" * LONG),
)


class RowCases:
    """Cases of SinkConformance."""

    def test_equal_rows_are_all_there(self, case: SinkCase) -> None:
        if case.sink_under_test.keyed:
            not_applicable("SinkUnderTest.keyed: the target keeps one row for each key")
        one, other = case.first, case.first + 1
        writing = case.write(0, [one, one, other])
        writing.write(case.sink_under_test.rows([one]))
        first, second = writing.pre_commit(), case.prepare(0, [one], subtask=1)
        assert first is not None
        case.finish(0, first, second)
        case.finish(1, case.prepare(1, [one]))
        seen = case.visible()
        assert seen == Counter({one: 5, other: 1}), (
            f"of 5 equal rows, in one batch, two batches, two subtasks and two epochs, {seen[one]} are visible, and "
            f"{seen[other]} of 1 other row. Rows that are equal are still different rows: let no hash or key of the "
            "content stand for one. If the target keeps one row for each key, say SinkUnderTest(keyed=True)"
        )

    def test_rows_of_a_subtask_keep_their_order(self, case: SinkCase) -> None:
        if not case.sink_under_test.ordered:
            not_applicable("SinkUnderTest.ordered is not set: the target's readers see no order of rows")
        numbers = [case.first + n for n in (5, 3, 9, 1, 7, 2)]
        writing = case.write(0, numbers[:4])
        writing.write(case.sink_under_test.rows(numbers[4:]))
        committable = writing.pre_commit()
        assert committable is not None
        case.finish(0, committable)
        assert [n for n in case.sink_under_test.read() if n in numbers] == numbers

    def test_values_are_visible_as_they_were_written(self, case: SinkCase) -> None:
        columns = _columns(case)
        written: dict[int, dict[str, Any]] = {}
        committables: list[Committable] = []
        values = [
            (name, value) for name, value in _values(columns) if case.sink_under_test.read_rows or _is_tame(value)
        ]
        for number, (name, value) in enumerate(values, case.first):
            arrays = [pa.array([number], pa.int64())]
            arrays += [pa.array([value if field.name == name else _plain(field)], field.type) for field in columns]
            batch = pa.RecordBatch.from_arrays(arrays, names=["n", *columns.names])
            writing = case.begin(0, subtask=len(committables))
            try:
                case.sink.validate(batch.schema)
                writing.write(batch)
                committable = writing.pre_commit()
            except OncewardError:  # it is refused before the decision, and loudly
                writing.discard()
                continue
            assert committable is not None
            committables.append(committable)
            written[number] = batch.to_pylist()[0]
        assert written, "the sink refuses every one of these rows: give SinkUnderTest.columns, which it takes"
        case.finish(0, *committables)
        case.assert_visible(list(written))
        _check_values(case, written)

    @pytest.mark.parametrize(("option", "value"), [("select", ["n"]), ("where", "n IS NOT NULL")])
    def test_select_and_where_are_passed_on(self, case: SinkCase, option: str, value: Any) -> None:
        kind = type(own(case.sink))
        takes = inspect.signature(kind.__init__).parameters
        if option not in takes and not any(one.kind is one.VAR_KEYWORD for one in takes.values()):
            not_applicable(f"the sink does not take {option}")
        original = kind.__init__

        @functools.wraps(original)
        def initialize(sink: Any, *arguments: Any, **options: Any) -> None:
            original(sink, *arguments, **{**options, option: value})

        with mock.patch.object(kind, "__init__", initialize):
            kept = getattr(own(case.make()), option)
        assert kept == value, (
            f"the sink takes {option}={value!r}, and its attribute {option} is {kept!r}, so it would get the wrong "
            f"rows. Pass it on: super().__init__(name, {option}={option})"
        )


def _columns(case: SinkCase) -> pa.Schema:
    if case.sink_under_test.columns is not None:
        return case.sink_under_test.columns
    if case.sink_under_test.rows is not numbered:
        not_applicable("no SinkUnderTest.columns: what becomes of values that are easily lost was not shown")
    return pa.schema([("text", pa.string())])


def _check_values(case: SinkCase, written: dict[int, dict[str, Any]]) -> None:
    if case.sink_under_test.read_rows is None:
        not_applicable("no SinkUnderTest.read_rows: of the rows, only the column n was compared")
    for row in case.sink_under_test.read_rows():
        expected = written.get(row["n"])
        for name, value in (expected or {}).items():
            assert name in row, f"column {name} is missing in a visible row"
            assert _same(row[name], value), (
                f"column {name}: {_shown(value)} was written, {_shown(row[name])} is visible"
            )


def _is_tame(value: Any) -> bool:
    """Return whether a reader that only looks for numbers gets along with a value, for example line by line."""
    return not isinstance(value, str) or value.isprintable()


def _same(seen: Any, written: Any) -> bool:
    if isinstance(seen, float) and isinstance(written, float) and math.isnan(written):
        return math.isnan(seen)
    return bool(seen == written)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < LONG // 1000 else f"{text[:40]}… ({len(text)} characters)"


def _values(columns: pa.Schema) -> Iterator[tuple[str, Any]]:
    for field in columns:
        for value in (*_hard(field.type), None):
            yield field.name, value


def _plain(field: pa.Field) -> Any:
    return next(iter(_hard(field.type)), None) if not pa.types.is_string(field.type) else "plain"


def _hard(kind: pa.DataType) -> tuple[Any, ...]:  # noqa: C901, PLR0911 - a table
    """Return values of a type that are easily lost or changed."""
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _TEXTS
    if types.is_boolean(kind):
        return (True, False)
    if types.is_integer(kind):
        bits = kind.bit_width - types.is_signed_integer(kind)
        return (0, (1 << bits) - 1, *([-1, -(1 << bits)] if types.is_signed_integer(kind) else []))
    if types.is_floating(kind):
        return (0.0, 0.5, -1.5, math.inf, -math.inf, math.nan)
    if types.is_decimal(kind):
        digits = Decimal("9" * kind.precision).scaleb(-kind.scale)
        return (Decimal(0).scaleb(-kind.scale), digits, -digits)
    if types.is_date(kind):
        return (dt.date(1969, 12, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31))
    if types.is_timestamp(kind):
        zone = dt.UTC if kind.tz else None
        return tuple(
            dt.datetime(*parts, tzinfo=zone) for parts in ((1970, 1, 1), (1969, 12, 31, 23, 59, 59), (2262, 1, 1))
        )
    if types.is_binary(kind) or types.is_large_binary(kind):
        return (b"", b"\0\xff'\"\\\n", bytes(range(256)), b"\xff" * LONG)
    if types.is_list(kind) or types.is_large_list(kind):
        return ([], [None], list(_hard(kind.value_type)))
    if types.is_struct(kind):
        return (
            {field.name: None for field in kind},
            {field.name: next(iter(_hard(field.type)), None) for field in kind},
        )
    return ()
