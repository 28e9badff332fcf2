"""Aggregation of record batches gives what one row after another would give."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.core import CheckpointConfig, FileBackend, MemoryBackend, RestartStrategy, RocksDBBackend
from onceward.core.engine.aggregate import AggregateLogic, aggregation
from onceward.core.engine.channels import Barrier, TaskId
from onceward.core.engine.functions import ProcessLogic
from onceward.core.engine.logic import Guarded
from onceward.core.engine.state.keyed import KeyScope
from onceward.core.engine.state.keys import KeyEncoder
from onceward.core.errors import ConfigurationError, OperatorError
from onceward.core.log import MemoryStore
from onceward.sources import SequenceSource
from onceward.types import AggregateFunction

from .engine_kit import Slowly, numbers, pipeline, reach
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from onceward.core.engine.state.row_store import KeyedTable

ALL = range(128)
TOTALS: dict[str, tuple[str, AggregateFunction]] = {
    "total": ("v", "sum"),
    "n": ("*", "count"),
    "known": ("v", "count"),
    "least": ("v", "min"),
    "most": ("v", "max"),
}
MEAN = {**TOTALS, "mean": ("v", "mean")}
Totals = dict[str, tuple[str, AggregateFunction]]
INT64 = 2**63


def a_table() -> KeyedTable:
    return MemoryBackend().open(TaskId("totals", 0), ALL, [], None)


def a_logic(keys: Sequence[str], totals: Mapping[str, tuple[str, AggregateFunction]], **options: Any) -> AggregateLogic:
    encoder = KeyEncoder(keys)
    scope = KeyScope(options.pop("table", None) or a_table(), ALL, 128, options.get("now", lambda: 0.0))
    options = {"keys": encoder, "scope": scope, "parallelism": 1, "lists": {}, "now": lambda: 0.0} | options
    logic = AggregateLogic(aggregation(encoder, totals), Guarded(TaskId("totals", 0), None), **options)
    logic.open()
    return logic


class OneByOne:
    """The same, in plain Python, row by row; after each batch the totals of its keys."""

    def __init__(self, keys: Sequence[str], totals: Mapping[str, tuple[str, str]]) -> None:
        self.keys = keys
        self.totals = totals
        self.values: dict[Any, dict[str, list[Any]]] = {}

    def add(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen = dict.fromkeys(tuple(row[key] for key in self.keys) for row in rows)
        for row in rows:
            values = self.values.setdefault(tuple(row[key] for key in self.keys), {})
            for column in {column for column, _ in self.totals.values()}:
                value = 1 if column == "*" else row[column]
                values.setdefault(column, []).extend([] if value is None else [value])
        return [
            {**dict(zip(self.keys, key, strict=True)), **{name: self.total(key, name) for name in self.totals}}
            for key in seen
        ]

    def total(self, key: Any, name: str) -> Any:
        column, function = self.totals[name]
        values = self.values[key][column]
        if function == "count":
            return len(values)
        if not values:
            return None
        if function in {"min", "max"}:
            return {"min": min, "max": max}[function](values)
        total = values[0]
        for value in values[1:]:
            total = Context(prec=100).add(total, value) if isinstance(total, Decimal) else total + value
        return total if function == "sum" else float(total / len(values))


def cut(table: pa.Table, chance: random.Random) -> Iterator[pa.RecordBatch]:
    """A table in batches of any size."""
    at = 0
    while at < table.num_rows:
        size = chance.choice([1, 1, 2, 5, 30])
        yield from table.slice(at, size).combine_chunks().to_batches()
        at += size


def comparable(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(
        repr({name: v.normalize() if isinstance(v, Decimal) else v for name, v in row.items()}) for row in rows
    )


BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
VALUES: dict[str, tuple[pa.DataType, Callable[[random.Random], Any], Totals]] = {
    "int64": (pa.int64(), lambda c: c.randint(-1000, 1000), MEAN),
    "int8": (pa.int8(), lambda c: c.choice([-128, 127]), TOTALS),
    "uint64": (pa.uint64(), lambda c: c.choice([0, 1, 2**63 - 1000]), {"most": ("v", "max"), "n": ("v", "count")}),
    "large": (pa.int64(), lambda c: c.choice([-1, 1]) * c.choice([1, 2**61, INT64 - 1, 2**62 - 1]), TOTALS),
    "largest uint64": (pa.uint64(), lambda c: c.choice([1, 2**64 - 1, 2**63]), TOTALS),
    "double": (pa.float64(), lambda c: c.randint(-4000, 4000) / 4, MEAN),
    "float": (pa.float32(), lambda c: c.randint(-4000, 4000) / 4, TOTALS),
    "decimal": (pa.decimal128(12, 3), lambda c: Decimal(c.randint(-(10**11), 10**11)).scaleb(-3), MEAN),
    "large decimal": (pa.decimal128(38, 2), lambda c: Decimal(c.choice([-1, 1, 9]) * 10**37).scaleb(-2), MEAN),
    **{
        name: (type_, value, {k: t for k, t in TOTALS.items() if k != "total"})
        for name, type_, value in [
            (
                "timestamp",
                pa.timestamp("us", "UTC"),
                lambda c: BEGIN + timedelta(microseconds=c.randint(-(10**9), 10**9)),
            ),
            ("naive", pa.timestamp("ms"), lambda c: datetime(1970, 1, 1) + timedelta(hours=c.randint(-99, 99))),  # noqa: DTZ001
            ("date", pa.date32(), lambda c: date(1970, 1, 1) + timedelta(days=c.randint(-900, 900))),
            ("date64", pa.date64(), lambda c: date(1970, 1, 1) + timedelta(days=c.randint(-900, 900))),
            ("time", pa.time32("s"), lambda c: time(c.randint(0, 23))),
            ("duration", pa.duration("ms"), lambda c: timedelta(seconds=c.randint(-99, 99))),
            ("text", pa.string(), lambda c: c.choice(["", "a", "ä", "b"])),
            ("bytes", pa.large_binary(), lambda c: c.randbytes(c.randint(0, 2))),
            ("truth", pa.bool_(), lambda c: c.random() < 0.5),
        ]
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES)
def test_it_gives_what_one_row_after_another_would_give_however_rows_come_in_batches(kind: str):
    type_, value, totals = VALUES[kind]
    overflows = 0
    for seed in range(25):
        chance = random.Random(seed)
        schema = pa.schema({"k": pa.string(), "l": pa.float64(), "v": type_})
        rows = [
            {
                "k": chance.choice(["a", "b", "", None]),
                "l": chance.choice([0.5, None, 1.0]),
                "v": None if chance.random() < 0.2 else value(chance),
            }
            for _ in range(chance.randint(1, 60))
        ]
        keys = chance.choice([["k"], ["l"], ["k", "l"]])
        logic, plain = a_logic(keys, totals), OneByOne(keys, totals)
        for batch in cut(pa.Table.from_pylist(rows, schema), chance):
            expected = plain.add(batch.to_pylist())
            if any(_overflows(row.get("total")) for row in expected):
                overflows += 1
                with pytest.raises(
                    OperatorError, match=r"operator totals, subtask 0: OverflowError: sum\(v\) is .*key"
                ):
                    logic.rows(batch)
                break
            (made,) = logic.rows(batch)
            assert comparable(made.to_pylist()) == comparable(expected)
            assert made.schema.field(keys[0]).type == schema.field(keys[0]).type
            if "most" in totals:
                assert made.schema.field("most").type == type_
    assert bool(overflows) is ("large" in kind)


def _overflows(total: Any) -> bool:
    if isinstance(total, Decimal):
        return abs(total.scaleb(2, Context(prec=100))) >= 10**38
    return isinstance(total, int) and not -INT64 <= total < INT64


def test_keys_that_are_equal_have_one_total_and_nan_counts_only_where_nothing_else_is():
    logic = a_logic(["k"], {"n": ("*", "count"), "least": ("v", "min"), "most": ("v", "max")})
    nan = float("nan")
    schema = pa.schema({"k": pa.float64(), "v": pa.float64()})
    for values, least, most in ([(nan, nan), "nan", "nan"], [(1.0, nan), "1.0", "1.0"], [(nan, 3.0), "1.0", "3.0"]):
        batch = pa.RecordBatch.from_pydict({"k": [0.0, -0.0], "v": list(values)}, schema=schema)
        (made,) = logic.rows(batch)
        assert made.num_rows == 1
        assert (str(made["least"][0].as_py()), str(made["most"][0].as_py())) == (least, most)
    assert made["n"].to_pylist() == [6]


def test_the_state_is_read_and_written_once_for_each_batch():
    table = a_table()
    calls: Counter[str] = Counter()
    for name in ("get", "put", "get_many", "put_many"):
        found = getattr(table, name)
        setattr(table, name, lambda *a, name=name, found=found: calls.update([name]) or found(*a))
    logic = a_logic(["k"], TOTALS, table=table)
    for _ in range(3):
        logic.rows(pa.RecordBatch.from_pylist([{"k": n % 10, "v": n} for n in range(100)]))
    assert calls == {"get_many": 3, "put_many": 3}


def test_an_empty_batch_gives_nothing():
    assert (
        a_logic(["k"], TOTALS).rows(pa.RecordBatch.from_pylist([], pa.schema({"k": pa.int64(), "v": pa.int64()}))) == []
    )


@pytest.mark.parametrize(
    ("totals", "said"),
    [
        ({}, "at least one total"),
        ({"n": ("v", "median")}, "give a column and one of count, max, mean, min, sum"),
        ({"n": "v"}, "give a column and one of"),
        ({"n": ("*", "sum")}, "only rows as a whole are counted"),
        ({"k": ("v", "sum")}, "is a column of the key"),
    ],
)
def test_what_cannot_be_aggregated_is_refused_when_the_pipeline_is_built(totals: Any, said: str):
    stream = pipeline().source(SequenceSource([{"k": 1, "v": 1}]))
    with pytest.raises(ConfigurationError, match=said):
        stream.key_by("k").aggregate(totals)
    with pytest.raises(ConfigurationError, match="call key_by first"):
        stream.aggregate({"n": ("*", "count")})


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"w": [1]}, r"aggregate names columns \['v', 'v'\]; the rows have \['k', 'w'\]"),
        ({"v": ["text"]}, r"cannot compute sum\(v\): the column is string. Cast it before"),
    ],
)
def test_columns_that_cannot_be_aggregated_are_named(column: dict[str, Any], said: str):
    with pytest.raises(ConfigurationError, match=said):
        a_logic(["k"], {"n": ("v", "mean")}).rows(pa.RecordBatch.from_pydict({"k": [1], **column}))


def test_state_of_one_type_is_not_read_as_that_of_another():
    """Of what two subtasks have stored, one stays as it is and the other is compared."""
    logic = a_logic(["k"], {"most": ("v", "max")})
    at = datetime(2026, 1, 1)  # noqa: DTZ001 - without zone
    logic.rows(pa.RecordBatch.from_pydict({"k": [1], "v": pa.array([at], pa.timestamp("ms"))}))
    state, _ = logic.freeze(Barrier(1)).write(None, "")
    logic = a_logic(["k"], {"most": ("v", "max")}, lists={"types": state.lists["types"].items * 2})
    state, _ = logic.freeze(Barrier(2)).write(None, "")
    assert len(state.lists["types"].items) == 1
    with pytest.raises(
        ConfigurationError, match=r"state of \['max\(v\) timestamp\[ms\]'\]; these rows .*timestamp\[us\]"
    ):
        logic.rows(pa.RecordBatch.from_pydict({"k": [1], "v": pa.array([at], pa.timestamp("us"))}))


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize(
    "value", [5, 2.5, "x", Decimal("1.25"), datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1), timedelta(seconds=3)]
)
def test_columns_of_nulls_and_missing_ones_count_as_nulls_whatever_the_batch(value: Any, restored: bool):
    """A batch whose values are all null has no type: it is that of the state, or of the first value."""
    totals: Totals = {"known": ("v", "count"), "least": ("v", "min"), "n": ("*", "count")}
    if isinstance(value, int | float | Decimal):
        totals |= {"total": ("v", "sum"), "mean": ("v", "mean")}
    logic, n, seen = a_logic(["k"], totals), 0, 0
    batches = [{"k": [1], "v": [None]}, {"k": [1], "v": [value]}, {"k": [1, 1], "v": [None, None]}, {"k": [1]}]
    for values in batches:
        (made,) = logic.rows(pa.RecordBatch.from_pydict(values))
        n, seen = n + len(values["k"]), seen + sum(v is not None for v in values.get("v", []))
        (row,) = made.to_pylist()
        assert row["n"] == n
        assert row["known"] == seen
        assert row["least"] == (value if seen else None)
        assert made.schema.field("least").type == (pa.array([value]).type if seen else pa.null())
        assert row.get("total") == (value if seen and "total" in totals else None)
        if restored:
            state, _ = logic.freeze(Barrier(n)).write(None, "")
            table = logic._scope.table if logic._scope is not None else None
            logic = a_logic(["k"], totals, table=table, lists={"types": state.lists["types"].items * 2})


def test_what_subtasks_know_of_types_is_put_together():
    logic = a_logic(["k"], {"most": ("v", "max"), "least": ("w", "min")})
    logic.rows(pa.RecordBatch.from_pydict({"k": [1], "v": [3], "w": [None]}))
    one, _ = logic.freeze(Barrier(1)).write(None, "")
    logic = a_logic(["k"], {"most": ("v", "max"), "least": ("w", "min")})
    logic.rows(pa.RecordBatch.from_pydict({"k": [2], "v": [None], "w": ["a"]}))
    other, _ = logic.freeze(Barrier(1)).write(None, "")
    items = [*one.lists["types"].items, *other.lists["types"].items]
    logic = a_logic(["k"], {"most": ("v", "max"), "least": ("w", "min")}, lists={"types": items})
    with pytest.raises(ConfigurationError, match=r"has state of .*max\(v\) int64.*these rows make it .*double"):
        logic.rows(pa.RecordBatch.from_pydict({"k": [1], "v": [3.5], "w": ["b"]}))


def test_a_column_that_no_record_has_is_a_mistake_until_it_was_seen():
    logic = a_logic(["k"], {"most": ("v", "max")})
    with pytest.raises(ConfigurationError, match=r"aggregate names columns \['v'\]"):
        logic.rows(pa.RecordBatch.from_pydict({"k": [1]}))


def test_an_aggregate_is_frozen_restored_and_closed_by_the_code_of_process_functions():
    """One machinery: freezing, restoring, confirming and closing are those of row-wise functions."""
    assert issubclass(AggregateLogic, ProcessLogic)
    assert {"rows", "some_rows", "open", "__init__"} >= vars(AggregateLogic).keys() & vars(ProcessLogic).keys() - {
        "__module__",
        "__doc__",
        "__firstlineno__",  # as "__static_attributes__", of Python 3.13
        "__static_attributes__",
    }


BACKENDS: list[Callable[[Path], Any]] = [
    lambda _: MemoryBackend(),
    lambda path: FileBackend(path / "state"),
    lambda path: RocksDBBackend(path / "state"),
]


@pytest.mark.parametrize("backend", BACKENDS, ids=["memory", "files", "rocksdb"])
def test_a_savepoint_is_continued_at_another_parallelism(backend: Callable[[Path], Any], tmp_path: Path):
    store, target, made = MemoryStore(), Target(), backend(tmp_path)
    rows = numbers(6000, keys=50)

    def totals(source: Any, parallelism: int, what: Totals) -> Any:
        p = pipeline(store=store, backend=made, checkpointing=CheckpointConfig(interval=0.02))
        keyed = p.source(source, uid="numbers").key_by("k")
        keyed.aggregate(what, uid="totals", parallelism=parallelism).sink(TargetSink(target))
        return p

    source = Slowly(rows, batch_rows=100)
    p = totals(source, 3, TOTALS)
    job = p.start()
    reach(source, job, 30)
    p.stop_with_savepoint(str(tmp_path / "savepoint"), timeout=20)
    with pytest.raises(ConfigurationError, match=r"has in checkpoint [0-9]+ states .*: it would be lost"):
        totals(SequenceSource(rows, batch_rows=100), 2, {"n": ("*", "count")}).run()
    renamed = {name.upper(): total for name, total in reversed(TOTALS.items())}
    totals(SequenceSource(rows, batch_rows=100), 2, renamed).run()
    plain = OneByOne(["k"], renamed)
    expected = plain.add(rows)
    newest = {row["k"]: row for row in target.rows if row.get("N") == 120}
    assert comparable(list(newest.values())) == comparable(expected)
    seen = Counter((row["k"], row.get("n") or row.get("N")) for row in target.rows)
    assert set(seen.values()) == {1}


def test_an_overflow_ends_the_run_and_shows_nothing_wrong():
    target = Target()
    p = pipeline(restart=RestartStrategy.none())
    rows = [{"k": "a", "v": 2**62}, {"k": "b", "v": 1}, {"k": "a", "v": 2**62}]
    p.source(SequenceSource(rows, batch_rows=1)).key_by("k").aggregate({"v": ("v", "sum")}, uid="totals").sink(
        TargetSink(target)
    )
    with pytest.raises(
        OperatorError, match=r"operator totals, subtask 0: OverflowError: sum\(v\) is 9223372036854775808, .*'key': 'a'"
    ):
        p.run()
    assert all(row["v"] > 0 for row in target.rows)
