"""Keyed aggregation of record batches: the state is read and written once for each key of a batch.

A key's state is a list of parts, such as a sum and a count (a mean is made of these two). Arrow computes the parts of a
batch, and Python adds them to those of the state: its integers and decimals have no limit, so a total that does not fit
its Arrow type is found and is an error.
"""

from __future__ import annotations

import operator
import re
import zlib
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigurationError
from .functions import ProcessFunction, ProcessLogic
from .logic import Logic
from .state.keyed import OperatorState, ValueState, pack, unpack
from .state.ttl import checked_ttl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .state.keys import KeyEncoder

AggregateFunction = Literal["count", "max", "mean", "min", "sum"]
FUNCTIONS: Final = get_args(AggregateFunction)
_LONGEST: Final = 50
_MOST: Final = 1 << 63
# Python's own context rounds to 28 digits, and a sum of decimals has up to 38.
_EXACT: Final = Context(prec=100)


class AggregateValue(NamedTuple):
    """One aggregate of a key that the state stores: a function of a column. A mean is stored as a sum and a count."""

    column: str
    function: str

    def __str__(self) -> str:
        return f"{self.function}({self.column})"


class Aggregation(ProcessFunction):
    """Totals of each key, by name. Made by `aggregation`, which adds the keyed state."""

    types = OperatorState[Any]("union")
    """Arrow types of the parts, so that values of one type are never read as those of another."""

    def __init__(self, totals: Mapping[str, AggregateValue]) -> None:
        self.totals = dict(totals)
        self.parts = _parts(totals.values())


def aggregation(
    keys: KeyEncoder | None, totals: Mapping[str, tuple[str, AggregateFunction]], ttl: float | None = None
) -> Aggregation:
    """Return the function of `Stream.aggregate`, with the keyed state that its totals need, or refuse its arguments."""
    if keys is None:
        raise ConfigurationError("aggregate needs keys: call key_by first")
    values = {}
    for name, total in totals.items():
        if not isinstance(total, tuple) or len(total) != 2 or total[1] not in FUNCTIONS:  # noqa: PLR2004 - a pair
            known = ", ".join(FUNCTIONS)
            raise ConfigurationError(f"aggregate: {name!r} is {total!r}; give a column and one of {known}")
        if total[0] == "*" and total[1] != "count":
            raise ConfigurationError(f"aggregate: {name!r} is the {total[1]} of '*'; only rows as a whole are counted")
        if name in keys.columns:
            raise ConfigurationError(f"aggregate: {name!r} is a column of the key; give the total another name")
        values[name] = AggregateValue(*total)
    if not values:
        raise ConfigurationError("aggregate needs at least one total")
    # The state's name says what is in it: a restore refuses to read it as something else.
    states = {_state(_parts(values.values())): ValueState[Any](None, ttl=checked_ttl("aggregate", ttl))}
    with_state: type[Aggregation] = type("Aggregation", (Aggregation,), states)
    return with_state(values)


def _parts(totals: Iterable[AggregateValue]) -> list[AggregateValue]:
    """Return the values to keep for these totals, in an order of their own: a mean needs its sum and its count."""
    values: set[AggregateValue] = set()
    for column, function in totals:
        values |= {AggregateValue(column, each) for each in (("sum", "count") if function == "mean" else (function,))}
    # Sorted, because the state has them in this order, in whichever order totals are named.
    return sorted(values)


def _state(parts: Sequence[AggregateValue]) -> str:
    """Name of the state: a readable one, and short, because every row of the state begins with it."""
    name = ",".join(map(str, parts))
    return name if len(name.encode()) <= _LONGEST else f"{name[: _LONGEST // 4]}~{zlib.crc32(name.encode()):08x}"


class AggregateLogic(ProcessLogic):
    """One subtask of `aggregate`."""

    reads_mixed = False

    def __init__(self, function: Aggregation, *args: Any, **kwargs: Any) -> None:
        super().__init__(function, *args, **kwargs)
        self._totals, self._parts, self._state = function.totals, function.parts, _state(function.parts)
        self._schema: pa.Schema | None = None
        self._types: dict[AggregateValue, pa.DataType] = {}
        """Of each part; null while all values of its column have been null."""

    def open(self) -> None:
        known = self._lists["types"]
        of_subtasks = [list(types) for types in dict.fromkeys(map(tuple, known.get()))]  # each once
        known.set([merged] if (merged := _merged(of_subtasks)) else of_subtasks)

    def some_rows(self, batch: pa.RecordBatch, enough: Callable[[], bool]) -> tuple[int, Sequence[pa.RecordBatch]]:
        return Logic.some_rows(self, batch, enough)

    def rows(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        return [self._guarded.call(batch.schema.names, self._aggregated, batch)] if batch.num_rows else []

    def _aggregated(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the new totals of the keys in a batch."""
        keys, scope = self._keys, self._scope
        if keys is None or scope is None:
            raise ConfigurationError("aggregate needs keys: call key_by first")
        # The time is read anew for each batch, and what has expired is swept now and then.
        scope.leave()
        if batch.schema != self._schema:
            self._set_types(batch.schema)
        batch = self._with_all_columns(batch)
        distinct = self._distinct(keys, batch)
        grouped = self._grouped(batch, distinct.codes)
        rows = [*map(scope.rows[self._state].__getitem__, distinct.encoded)]
        state: ValueState[Any] = getattr(self._function, self._state)
        before = _unpack(state.get_many(scope, rows), len(self._parts))
        made: dict[AggregateValue, list[Any]] = {}
        arrays: dict[AggregateValue, pa.Array] = {}
        for part, olds in zip(self._parts, before, strict=True):
            made[part] = _combined(part, self._types[part], olds, _values(part, self._types[part], grouped))
            arrays[part] = self._array(part, made[part], distinct.values)
        packed = zip(*(map(pack, values) for values in made.values()), strict=True)
        state.put_many(scope, rows, [*map(b"".join, packed)])
        firsts = grouped.column("row_min").combine_chunks()
        columns = {name: batch.column(name).take(firsts) for name in keys.columns}
        for name, (column, function) in self._totals.items():
            if function == "mean":
                sums, counts = made[AggregateValue(column, "sum")], made[AggregateValue(column, "count")]
                means = [float(total / count) if count else None for total, count in zip(sums, counts, strict=True)]
                columns[name] = pa.array(means, pa.float64())
            else:
                columns[name] = arrays[AggregateValue(column, function)]
        return pa.RecordBatch.from_pydict(columns)

    def _grouped(self, batch: pa.RecordBatch, codes: pa.Array) -> pa.Table:
        """Aggregate a batch by key: the parts, in the order of the codes, and the number of each key's first row."""
        rows = pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)), 1)
        columns = {"key": codes.cast(pa.int64()), "row": rows}
        aggregates: list[Any] = [("row", "min")]
        for part in self._parts:
            if part.column == "*":
                aggregates.append(([], "count_all"))
            else:
                columns[str(part)] = _prepared(part, batch.column(part.column))
                aggregates.append((str(part), part.function))
        grouped = pa.table(columns).group_by("key", use_threads=False).aggregate(aggregates)
        in_order = grouped.column("key").combine_chunks().equals(rows.slice(0, grouped.num_rows))
        return grouped if in_order else grouped.sort_by("key")

    def _array(self, part: AggregateValue, values: Sequence[Any], keys: Sequence[Any]) -> pa.Array:
        type_ = self._types[part]
        try:
            return _as_array(values, type_)
        except (OverflowError, pa.ArrowInvalid):
            # One by one, so that the error names the key whose total does not fit.
            for key, value in zip(keys, values, strict=True):
                try:
                    _as_array([value], type_)
                except (OverflowError, pa.ArrowInvalid):
                    error = OverflowError(f"{part} is {value}, which does not fit {type_}")
                    raise self._guarded.failed({"key": key}, error) from None
            raise

    def _with_all_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add a column of nulls for each one that has no type in the batch, or is missing in all of its records."""
        for column in dict.fromkeys(part.column for part in self._parts if part.column != "*"):
            if _type_in(batch.schema, column) is None:
                nulls = pa.nulls(batch.num_rows, pa.int64())  # any type: nothing but their number is read
                at = batch.schema.get_field_index(column)
                batch = batch.append_column(column, nulls) if at < 0 else batch.set_column(at, column, nulls)
        return batch

    def _set_types(self, schema: pa.Schema) -> None:
        """Set the parts' types for rows of this schema; they must be those of the state where both have one."""
        known = self._lists["types"]
        before = self._known_types(known.get())
        typed = {part: type_ for part, type_ in (before or {}).items() if not pa.types.is_null(type_)}
        missing = [
            column for column, _ in self._parts if column not in {*schema.names, *(p.column for p in typed), "*"}
        ]
        if missing:
            raise ConfigurationError(f"aggregate names columns {missing}; the rows have {schema.names}")
        types = {part: _type_of(part, schema, typed.get(part, pa.null())) for part in self._parts}
        own = [f"{part} {type_}" for part, type_ in types.items()]
        if before is None or any(types[part] != type_ for part, type_ in typed.items()):
            raise ConfigurationError(
                f"operator {self._guarded.task.uid} has state of {known.get()[0]}; these rows make it {own}: give the "
                "column the type that it had (schema= of the operator before), or begin without this state"
            )
        known.set([own])
        self._schema, self._types = schema, types

    def _known_types(self, of_state: Sequence[Sequence[str]]) -> dict[AggregateValue, pa.DataType] | None:
        """Return the types in this operator's state; None if it has several, or those of other parts."""
        if len(of_state) > 1 or any(len(types) != len(self._parts) for types in of_state):
            return None
        return {
            part: named_type(text.removeprefix(f"{part} "))
            for types in of_state
            for part, text in zip(self._parts, types, strict=True)
        }


def types_of_totals(function: Aggregation, columns: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return the types of the totals, as far as those of the columns are known."""
    schema = pa.schema(list(columns.items()))
    types = {
        name: pa.float64() if part.function == "mean" else _type_of(part, schema, pa.null())
        for name, part in function.totals.items()
    }
    return {name: type_ for name, type_ in types.items() if not pa.types.is_null(type_)}


def check_part_types(
    function: Aggregation, uid: str, where: str, of_state: Sequence[Sequence[str]], columns: Mapping[str, pa.DataType]
) -> None:
    """Check that the types of the parts in a checkpoint are those that these columns make.

    Args:
        function: The function that computes the totals.
        uid: Uid of the operator.
        where: Name of the checkpoint, for the error.
        of_state: The parts with their types, as each subtask stored them.
        columns: The types of columns that are known before a row has been read.

    Raises:
        ConfigurationError: They are others.
    """
    schema = pa.schema(list(columns.items()))
    now = [f"{part} {_type_of(part, schema, pa.null())}" for part in function.parts]
    for known, text in zip(_merged(of_state), now, strict=False):
        if known != text and not known.endswith(" null") and not text.endswith(" null"):
            raise ConfigurationError(
                f"operator {uid} has in {where} state of {known}; the columns make it {text} now. Give the column the "
                "type that it had (schema= of the operator before); or give the operator another uid to begin without "
                "this state, and pass allow_non_restored_state=True"
            )


def _merged(of_subtasks: Sequence[Sequence[str]]) -> list[str]:
    """Return the types of the parts that all subtasks agree on; an empty list if they contradict each other."""
    merged: list[str] = []
    for texts in zip(*of_subtasks, strict=False):
        typed = {text for text in texts if not text.endswith(" null")} or set(texts)
        if len(typed) > 1:
            return []
        merged += typed
    return merged


def named_type(text: str) -> pa.DataType:
    """Return the Arrow type that has this text form, if aggregates can have it.

    Raises:
        ValueError: There is none.
    """
    if number := re.fullmatch(r"decimal128\((\d+), (-?\d+)\)", text):
        return pa.decimal128(int(number[1]), int(number[2]))
    if time := re.fullmatch(r"timestamp\[(\w+), tz=(.+)\]", text):
        return pa.timestamp(time[1], time[2])
    return pa.type_for_alias(text)


def _type_in(schema: pa.Schema, column: str) -> pa.DataType | None:
    """Return a column's type; None if it has none, because all its values are null or missing."""
    at = schema.get_field_index(column)
    return None if at < 0 or pa.types.is_null(schema.field(at).type) else schema.field(at).type


def _unpack(stored: Sequence[bytes | None], parts: int) -> list[list[Any]]:
    """Return the values of each part in many keys' states, decoded in one call as one array of MessagePack."""
    unknown = pack(None) * parts
    header = b"\xdd" + (len(stored) * parts).to_bytes(4, "big")
    values = unpack(header + b"".join([data or unknown for data in stored]))
    return [values[part::parts] for part in range(parts)]


def _type_of(part: AggregateValue, schema: pa.Schema, known: pa.DataType) -> pa.DataType:
    """Return the type of a part; the known one where the rows leave it open."""
    is_ = pa.types
    if part.function == "count":
        return pa.int64()
    type_ = _type_in(schema, part.column)
    if type_ is None:
        return known
    if is_.is_integer(type_):
        return pa.int64() if part.function == "sum" else type_
    if is_.is_float32(type_) or is_.is_float64(type_):
        return pa.float64() if part.function == "sum" else type_
    if is_.is_decimal128(type_):
        return pa.decimal128(38, type_.scale) if part.function == "sum" else type_
    plain = (is_.is_string, is_.is_large_string, is_.is_binary, is_.is_large_binary, is_.is_boolean, _is_time)
    if part.function != "sum" and any(fits(type_) for fits in plain):
        return type_
    raise ConfigurationError(f"aggregate cannot compute {part}: the column is {type_}. Cast it before")


def _is_time(type_: pa.DataType) -> bool:
    return pa.types.is_temporal(type_) and not pa.types.is_interval(type_)


def _number(type_: pa.DataType) -> pa.DataType:
    return pa.int32() if type_.bit_width == pa.int32().bit_width else pa.int64()


def _prepared(part: AggregateValue, column: pa.Array) -> pa.Array:
    """Return a column in a type that Arrow aggregates without an overflow, which it would not report."""
    if part.function in {"min", "max"} and _is_time(column.type):
        return column.view(_number(column.type))
    if part.function == "sum" and pa.types.is_decimal128(column.type):
        return column.cast(pa.decimal256(76, column.type.scale))
    if part.function == "sum" and pa.types.is_integer(column.type):
        largest = max((abs(value) for value in pc.min_max(column).as_py().values() if value is not None), default=0)
        return column.cast(pa.int64() if largest * len(column) < _MOST else pa.decimal128(38, 0))
    return column


def _values(part: AggregateValue, type_: pa.DataType, grouped: pa.Table) -> list[Any]:
    """Return a part of each key in a batch; None where all values are null."""
    name = "count_all" if part.column == "*" else f"{part}_{part.function}"
    values: list[Any] = grouped.column(name).to_pylist()
    if pa.types.is_integer(type_) and pa.types.is_decimal(grouped.column(name).type):
        return [None if value is None else int(value) for value in values]
    return values


def _combined(part: AggregateValue, type_: pa.DataType, olds: Iterable[Any], news: Iterable[Any]) -> list[Any]:
    combine = _COMBINE[part.function]
    if pa.types.is_decimal(type_):  # MessagePack has text for it
        olds = [None if old is None else Decimal(old) for old in olds]
        combine = _EXACT.add if part.function == "sum" else combine
    pairs = zip(olds, news, strict=True)
    return [new if old is None else old if new is None else combine(old, new) for old, new in pairs]


def _less(old: Any, new: Any) -> Any:
    return new if new < old or old != old else old  # noqa: PLR0124 - NaN, which counts only where nothing else is


def _more(old: Any, new: Any) -> Any:
    return new if new > old or old != old else old  # noqa: PLR0124 - as above


_COMBINE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "count": operator.add,
    "max": _more,
    "min": _less,
    "sum": operator.add,
}


def _as_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    return pa.array(values, _number(type_)).view(type_) if _is_time(type_) else pa.array(values, type_)
