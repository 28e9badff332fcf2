"""A sink's `select` and `where` in the embedded engine: one pass, several outputs, one of them for what is rejected."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.core.engine.projection import Projection
from onceward.core.errors import ConfigurationError, OncewardError, OperatorError
from onceward.core.kit.crash_points import Step, hooked
from onceward.sources import SequenceSource

from .engine_kit import numbers, pipeline
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLE = Path(__file__).parent.parent / "examples" / "engine_dead_letter.py"


class Chosen(TargetSink):
    """Takes a part of its input."""

    def __init__(
        self, target: Target, name: str = "chosen", select: Sequence[str] | None = None, where: str | None = None
    ) -> None:
        super().__init__(target, name)
        self.select = list(select) if select is not None else None
        self.where = where


def projected(batch: pa.RecordBatch, select: Sequence[str] | None = None, where: str | None = None) -> pa.RecordBatch:
    (part,) = Projection("out", select, where)(batch)
    return part


def test_where_alone_leaves_types_and_order_as_they_are():
    batch = pa.record_batch(
        {
            "n": pa.array([3, None, 1, 2], pa.int8()),
            "amount": pa.array([Decimal("1.10"), None, Decimal("2.20"), Decimal("3.30")], pa.decimal128(12, 2)),
            "at": pa.array([1, 2, 3, 4], pa.timestamp("us", "Europe/Berlin")),
            "tag": pa.array(["a", "b", "a", "b"]).dictionary_encode(),
        }
    )
    found = projected(batch, where="n <> 1")
    assert found.schema == batch.schema
    assert found.column("n").to_pylist() == [3, 2]


def test_select_makes_columns_and_keeps_the_order():
    batch = pa.record_batch({"n": list(range(5000)), "word": ["x"] * 5000})
    parts = Projection("out", ["n * 2 AS twice", "upper(word) AS word"], "n >= 10")(batch)
    found = pa.Table.from_batches(list(parts))
    assert found.schema.names == ["twice", "word"]
    assert found.column("twice").to_pylist() == list(range(20, 10_000, 2))
    assert set(found.column("word").to_pylist()) == {"X"}


@pytest.mark.parametrize(("select", "where"), [(["n", "word"], None), (["n"], "n % 3 = 0"), (None, "n % 3 = 0")])
def test_no_row_is_lost_however_many_pieces_a_batch_becomes(
    select: Sequence[str] | None, where: str | None, monkeypatch: pytest.MonkeyPatch
):
    """The projection kept the first of several chunks: of 3,000,000 rows of 1 kB it dropped 900,000, silently."""
    monkeypatch.setattr("onceward.core.kit.pieces.PIECE_BYTES", 5000)
    monkeypatch.setattr("onceward.core.engine.projection.PIECE_BYTES", 5000)
    batch = pa.record_batch({"n": range(300), "word": ["x" * (n * 29 % 1999) for n in range(300)]})
    parts = list(Projection("out", select, where)(batch))
    assert len(parts) > 60
    assert [n for part in parts for n in part.column("n").to_pylist()] == list(range(0, 300, 3 if where else 1))
    assert max(part.nbytes for part in parts) <= 5000


def test_an_answer_of_several_chunks_is_several_batches(monkeypatch: pytest.MonkeyPatch):
    class Several:
        """A relation whose answer has several chunks, as one beyond 2 GiB has."""

        def project(self, _: str) -> Several:
            return self

        def to_arrow_table(self) -> pa.Table:
            return pa.table({"n": pa.chunked_array([[1, 2], [3]])})

    projection = Projection("out", ["n"], None)
    batch = pa.record_batch({"n": [1, 2, 3]})
    list(projection(batch))
    monkeypatch.setattr(projection, "_database", type("Database", (), {"from_arrow": lambda *_: Several()})())
    assert [part.num_rows for part in projection(batch)] == [2, 1]
    with pytest.raises(OperatorError, match=r"sink out: select .* gave 3 rows where 2 were expected. Nothing of this"):
        list(projection(batch.slice(0, 2)))


def test_answers_that_are_larger_than_their_rows_are_computed_few_rows_at_a_time():
    batch = pa.record_batch({"n": range(300)})
    sizes = [part.nbytes for part in Projection("out", ["repeat('x', 300000) AS big"], None)(batch)]
    assert sum(sizes) > 90_000_000
    assert max(sizes) < 20_000_000


def test_the_columns_of_a_select_are_known_without_rows():
    batch = pa.record_batch({"n": pa.array([1], pa.int64())})
    found = projected(batch, ["n + 1 AS m"], "n > 5")
    assert (found.num_rows, found.schema) == (0, pa.schema({"m": pa.int64()}))


@pytest.mark.parametrize("rows", [[1], [1, 2]])
@pytest.mark.parametrize(
    ("select", "where", "words"),
    [
        (["nn"], None, 'does not fit columns .*"nn" not found'),
        (None, "n >", "where 'n >': syntax error"),
        (None, "no_such(n)", "where .* does not exist"),
        (["sum(n) AS s"], None, "is an aggregate .sum."),
        (None, "max(n) > 0", "is an aggregate .max."),
        (["row_number() OVER () AS r"], None, "has a window function"),
        (["unnest([n, n]) AS u"], None, "has unnest"),
        (["(SELECT 1) AS q"], None, "has a subquery"),
        (["n, n + 1 AS m"], None, "is not one SQL expression"),
        (["n FROM elsewhere"], None, "is not one SQL expression"),
        (None, "n > 0 ORDER BY n", "is not one SQL expression"),
        (None, "n", "where 'n' is int64, not a boolean condition"),
        (["n AS a", "n AS A"], None, "two of them have the same name"),
        (["text.* FROM read_text('/etc/hostname') AS text"], None, "is not one SQL expression"),
    ],
)
def test_an_expression_that_is_wrong_is_named(
    select: Sequence[str] | None, where: str | None, words: str, rows: list[int]
):
    with pytest.raises(ConfigurationError, match=f"sink out: .*{words}"):
        projected(pa.record_batch({"n": rows}), select, where)


def test_names_that_differ_only_in_case_are_refused():
    with pytest.raises(ConfigurationError, match="which SQL ignores"):
        projected(pa.record_batch({"ID": [1, 2], "id": [10, 20]}), ["id"])


def test_columns_that_duckdb_does_not_know_are_in_nobodys_way():
    batch = pa.record_batch({"n": [1, 2], "half": pa.array([None, None], pa.float16())})
    assert projected(batch, where="n > 1").num_rows == 1
    assert projected(batch, ["n + 1 AS m -- a remark", "7 AS seven"]).to_pylist() == [
        {"m": 2, "seven": 7},
        {"m": 3, "seven": 7},
    ]
    with pytest.raises(ConfigurationError, match="does not fit columns"):
        projected(batch, ["half"])


@pytest.mark.parametrize(
    "durations",
    [
        pa.array([1_000, 1], pa.duration("ns")),
        pa.array([1_000, 2**62], pa.duration("us")),
        pa.array([[None], [1_001]], pa.list_(pa.duration("ns"))),
    ],
)
def test_a_duration_that_duckdb_would_change_is_refused_where_it_is_looked_at(durations: pa.Array):
    batch = pa.record_batch({"n": [1, 2], "took": durations})
    assert projected(batch, where="n > 1").column("took").equals(durations.slice(1))
    with pytest.raises(OperatorError, match=r"sink out: select .*column 'took' has a duration that DuckDB cannot keep"):
        projected(batch, ["took"])


def test_an_expression_that_fails_at_a_row_is_named():
    with pytest.raises(OperatorError, match=r"sink out: select .*cast.* failed: .*'no'"):
        projected(pa.record_batch({"s": ["1", "no"]}), ["cast(s AS int) AS n"])


def test_a_select_of_a_sink_cannot_read_files(tmp_path: Path):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with pytest.raises(OncewardError, match=r"disabled|not allowed|Permission|subquery"):
        projected(pa.record_batch({"n": [1]}), [f"(SELECT a FROM read_csv('{tmp_path}/secret.csv')) AS a"])


def test_an_expression_that_is_wrong_stops_the_pipeline_before_a_row_is_written():
    target = Target()
    graph = pipeline("wrong")
    graph.source(SequenceSource(numbers(10, keys=2)), uid="in").sink(Chosen(target, where="no_such_column = 1"))
    with pytest.raises(ConfigurationError, match="no_such_column"):
        graph.run()
    assert target.written == 0


def test_one_pass_feeds_several_outputs_exactly_once_over_failures():
    """Good rows, rejected rows and a copy in other columns: each epoch of all three is decided together."""
    target = Target()
    graph = pipeline("split")
    stream = graph.source(SequenceSource(numbers(3000, keys=7), units=2, batch_rows=50), uid="in", parallelism=2)
    stream.sink(Chosen(target, "good", where="n % 3 <> 0"), parallelism=2)
    stream.sink(Chosen(target, "rejected", select=["n", "'divisible' AS reason"], where="n % 3 = 0"))
    stream.sink(Chosen(target, "copy", select=["n AS m"]))
    left = [Step.PRE_COMMIT_AFTER, Step.DECIDE_BEFORE, Step.DECIDE_AFTER, Step.COMMIT_AFTER]

    def fails(step: Step) -> None:
        if step in left:
            left.remove(step)
            raise ConnectionError(f"told to fail at {step}")

    with hooked(fails):
        graph.run()
    assert left == []

    def shown(sink: str, column: str) -> list[Any]:
        return sorted(row[column] for row in target.by_sink(sink))

    assert shown("good", "n") == [n for n in range(3000) if n % 3]
    assert shown("rejected", "n") == list(range(0, 3000, 3))
    assert {row["reason"] for row in target.by_sink("rejected")} == {"divisible"}
    assert shown("copy", "m") == list(range(3000))


def test_the_dead_letter_example(tmp_path: Path):
    def run() -> None:
        done = subprocess.run([sys.executable, EXAMPLE, tmp_path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]

    def rows(folder: str) -> list[dict[str, Any]]:
        files = [path for path in (tmp_path / folder).glob("*.jsonl") if path.is_file()]
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]

    (tmp_path / "in").mkdir()
    for number, values in enumerate((["12", "x"], ["7", "-1"])):
        text = "".join(json.dumps({"user": "u", "cents": value}) + "\n" for value in values)
        (tmp_path / "in" / f"{number}.jsonl").write_text(text)
        run()
    assert sorted(row["cents"] for row in rows("paid")) == [7, 12]
    assert sorted(row["cents"] for row in rows("rejected")) == ["-1", "x"]
    assert {row["error"] for row in rows("rejected")} >= {"not a payment"}
