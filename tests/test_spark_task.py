"""What an executor does with its partition, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql.types import LongType, StructField, StructType, YearMonthIntervalType

from onceward.connectors.spark.write.spark_task import arrow_schema, in_utc, write_partition
from onceward.core.contract.transaction import WriteContext
from onceward.core.errors import SchemaError, SinkError

if TYPE_CHECKING:
    from pathlib import Path

    from onceward.sinks import TwoPhaseCommitSink


class Scripted:
    """A sink whose pre-commit or roll-back may fail."""

    select = where = None
    proof = ordered = False

    def __init__(self, name: str, *, discards: bool = True) -> None:
        self.name = name
        self.discards = discards
        self.discarded = 0

    def begin(self, context: WriteContext) -> WriteContext:
        return context

    def write(self, _transaction: WriteContext, _batch: pa.RecordBatch) -> None:
        """It is written."""

    def pre_commit(self, _transaction: WriteContext) -> Any:
        raise SinkError(f"{self.name} does not prepare")

    def discard(self, _transaction: WriteContext) -> None:
        self.discarded += 1
        if not self.discards:
            raise SinkError(f"{self.name} is away")


def test_a_sink_that_cannot_roll_back_keeps_no_other_from_it_and_hides_no_error():
    """Rows of an open transaction hold locks: the retry of the same partition would wait for them in vain."""
    sinks: list[Any] = [Scripted("a", discards=False), Scripted("b")]
    contexts = [WriteContext(pipeline="p", sink=s.name, log="0a0b", generation=0, epoch=0, subtask=0) for s in sinks]
    given: list[TwoPhaseCommitSink[Any]] = sinks
    batches = [pa.RecordBatch.from_pydict({"n": [1]})]
    with pytest.raises(SinkError, match="a does not prepare") as caught:
        write_partition(given, contexts, batches)
    assert [sink.discarded for sink in sinks] == [1, 1]
    assert caught.value.__notes__ == ["besides, sink a did not roll back: a is away"]


ZONED = pa.timestamp("us", "America/New_York")
NESTED = pa.struct([("list", pa.list_(ZONED)), ("map", pa.map_(pa.string(), pa.struct([("at", ZONED)])))])


def test_sinks_get_instants_in_utc_at_any_depth():
    """Spark says the session's zone in tasks, and UTC in the driver: keys and folders would differ."""
    now = datetime(2025, 10, 26, 0, 30, tzinfo=UTC)
    rows = [{"at": now, "deep": {"list": [now, None], "map": [("k", {"at": now})]}}, {"at": None, "deep": None}]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([("at", ZONED), ("deep", NESTED)]))
    given = in_utc(batch)
    assert "New_York" not in str(given.schema.types)
    assert given.to_pylist() == batch.to_pylist() == rows
    assert str(given["at"][0].as_py()) == "2025-10-26 00:30:00+00:00"
    assert in_utc(given) is given


def test_a_struct_that_is_null_may_have_fields_that_never_are(tmp_path: Path):
    """Spark sends nulls in them: of a variant that is null, and of each row that a sink's `where` leaves out."""
    never = pa.struct([pa.field("reason", pa.string(), nullable=False)])
    structs = pa.StructArray.from_buffers(never, 2, [pa.py_buffer(b"\2")], children=[pa.array([None, "late"])])
    at = pa.array([datetime(2025, 10, 26, tzinfo=UTC), None], ZONED)
    deep = pa.StructArray.from_arrays([structs, at], fields=[pa.field("inner", never), pa.field("at", ZONED)])
    batch = pa.record_batch({"at": at, "rejected": structs, "deep": deep})
    given = in_utc(batch.slice(0, 1))
    assert given.schema.types[:2] == [pa.timestamp("us", "UTC"), pa.struct({"reason": pa.string()})]
    assert given.to_pylist() == batch.to_pylist()[:1]
    assert in_utc(batch).to_pylist() == batch.to_pylist()
    pyarrow.parquet.write_table(pa.table(in_utc(batch)), tmp_path / "rows.parquet")


def test_a_column_that_spark_cannot_hand_over_is_named():
    schema = StructType([StructField("n", LongType()), StructField("span", YearMonthIntervalType())])
    with pytest.raises(SchemaError, match=r"column span has type interval year to month, .*cast it"):
        arrow_schema(schema)
    assert arrow_schema(StructType(schema.fields[:1])) == pa.schema({"n": pa.int64()})
