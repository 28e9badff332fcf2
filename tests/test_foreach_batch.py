"""ForeachBatch without a JVM: what the block of an epoch writes, refuses and decides."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from onceward.connectors.spark.session.query_plan import ClassicPlan
from onceward.connectors.spark.write import foreach_batch
from onceward.connectors.spark.write.foreach_batch import ForeachBatch
from onceward.core.errors import ConfigurationError, SchemaError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import MemoryStore, read

from .sink_kit import TargetSink, target_called
from .spark_kit import Checkpoint, Frame, Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Batch(Frame):
    """A micro-batch that knows its session."""

    dtypes = (("n", "bigint"),)
    schema = StructType([StructField("n", LongType())])

    def __init__(self, session: Any, *partitions: list[int]) -> None:
        super().__init__(*partitions)
        self.sparkSession = session

    def unionByName(self, other: Batch) -> Batch:  # noqa: N802 - Spark's name
        return Batch(self.sparkSession, *map(list, (*self.partitions, *other.partitions)))


class Shop:
    """A query whose function writes into two sinks."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = Checkpoint(folder / "checkpoint")
        self.spark = Session(self.checkpoint)
        self.spark.streams.active = []
        self.pipeline = f"shop-{folder.name}"[-60:]
        self.key, self.store = str(folder), MemoryStore()
        self.one, self.two = (
            TargetSink(f"{self.key}/one", "one"),
            TargetSink(f"{self.key}/two", "two"),
        )
        self.batches = self.restarted()

    def restarted(self) -> ForeachBatch:
        self.batches = ForeachBatch(self.one, self.two, pipeline=self.pipeline, store=self.store)
        return self.batches

    def batch(self, number: int, *partitions: list[int]) -> Batch:
        self.checkpoint.plan(number)
        return Batch(self.spark, *(partitions or ([number],)))

    def shown(self) -> list[list[int]]:
        return [sorted(row["n"] for row in target_called(f"{self.key}/{name}").rows) for name in ("one", "two")]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(foreach_batch, "query_session", lambda session, _: (session, None))
    monkeypatch.setattr(foreach_batch, "warn_of_python", lambda _: None)
    monkeypatch.setattr(foreach_batch, "plan_only_writes", lambda *_: False)
    monkeypatch.setattr(foreach_batch, "nodes", lambda _: [])
    monkeypatch.setattr(foreach_batch, "plan_keeps_state", lambda _: False)
    monkeypatch.setattr(foreach_batch, "sources_in", lambda _: [])
    monkeypatch.setattr(Session, "_jvm", None, raising=False)
    return Shop(tmp_path)


def test_the_end_of_the_block_writes_and_decides(shop: Shop) -> None:
    batch = shop.batch(0, [1], [2])
    with shop.batches.epoch(batch, 0) as epoch:  # type: ignore[arg-type]
        epoch.write(batch, shop.one)  # type: ignore[arg-type]
        epoch.write(Batch(shop.spark, [7]), shop.two)  # type: ignore[arg-type]
        assert shop.shown() == [[], []]
        assert read(shop.store).newest is None
    assert shop.shown() == [[1, 2], [7]]
    newest = read(shop.store).newest
    assert newest is not None
    assert sorted(newest.sinks) == ["one", "two"]


def test_a_sink_gets_nothing_that_is_not_written_into_it(shop: Shop) -> None:
    batch = shop.batch(0, [1], [2])
    with shop.batches.epoch(batch, 0) as epoch:  # type: ignore[arg-type]
        epoch.write(batch, shop.two)  # type: ignore[arg-type]
    batch = shop.batch(1)
    with shop.batches.epoch(batch, 1):  # type: ignore[arg-type]
        pass
    assert shop.shown() == [[], [1, 2]]
    assert batch.drained == 1  # a stateful query must run it
    assert read(shop.store).completed == 1


def test_a_sink_that_is_written_twice_gets_both(shop: Shop) -> None:
    batch = shop.batch(0, [1])
    with shop.batches.epoch(batch, 0) as epoch:  # type: ignore[arg-type]
        for rows in ([3], [4]):
            epoch.write(Batch(shop.spark, rows), shop.one)  # type: ignore[arg-type]
    assert shop.shown() == [[3, 4], []]


def test_other_columns_in_a_later_epoch_are_validated_before_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target may have lost a column since the epoch before, or the function may write another one."""
    asked = list[list[str]]()

    def validate(_: TargetSink, schema: Any) -> None:
        asked.append(schema.names)
        if schema.names != ["n"]:
            raise SchemaError("the table has no such column")

    monkeypatch.setattr(TargetSink, "validate", validate)

    def write(number: int, *columns: str) -> None:
        batch = shop.batch(number)
        batch.schema = StructType([StructField(name, LongType()) for name in columns])  # type: ignore[misc]
        with shop.batches.epoch(batch, number) as epoch:  # type: ignore[arg-type]
            epoch.write(batch, shop.one)  # type: ignore[arg-type]

    write(0, "n")
    write(1, "n")
    assert asked == [["n"]]
    with pytest.raises(SchemaError, match="no such column"):
        write(2, "n", "added")
    assert read(shop.store).decided == 1
    write(2, "n")
    assert shop.shown() == [[0, 1, 2], []]


def test_a_block_that_releases_what_it_writes_writes_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [2]
    monkeypatch.setattr(ClassicPlan, "kept_parts", lambda _: kept[0])
    batch = shop.batch(0, [1])

    def write(kept_at_the_end: int) -> None:
        kept[0] = 2
        with shop.batches.epoch(batch, 0) as epoch:  # type: ignore[arg-type]
            epoch.write(batch, shop.one)  # type: ignore[arg-type]
            kept[0] = kept_at_the_end

    with pytest.raises(ConfigurationError, match=r"unpersist\(\) was called before the end of the block"):
        write(1)
    assert shop.shown() == [[], []]
    assert read(shop.store).newest is None
    write(3)
    assert shop.shown() == [[1], []]


def test_a_refused_write_whose_error_is_caught_fails_the_epoch(shop: Shop) -> None:
    batch, other = shop.batch(0, [1]), Batch(shop.spark, [2])
    other.dtypes = (("n", "string"),)

    def write() -> None:
        with shop.batches.epoch(batch, 0) as epoch:  # type: ignore[arg-type]
            epoch.write(batch, shop.one)  # type: ignore[arg-type]
            with contextlib.suppress(SchemaError):
                epoch.write(other, shop.one)  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match=r"a write of this epoch was refused.*n bigint, and then n string"):
        write()
    assert shop.shown() == [[], []]
    assert read(shop.store).newest is None


def test_a_block_that_raises_writes_nothing(shop: Shop) -> None:
    batch = shop.batch(0, [1])

    def write() -> None:
        with shop.batches.epoch(batch, 0) as epoch:  # type: ignore[arg-type]
            epoch.write(batch, shop.one)  # type: ignore[arg-type]
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert shop.shown() == [[], []]
    shop.batches(batch, 0)  # type: ignore[arg-type]
    assert shop.shown() == [[1], [1]]


def test_a_second_epoch_of_a_batch_in_a_run_is_refused_and_in_the_next_run_it_is_a_replay(shop: Shop) -> None:
    shop.batches(shop.batch(0, [1]), 0)  # type: ignore[arg-type]
    for again in (shop.batches, shop.restarted()):
        with pytest.raises(ConfigurationError, match="has been written and committed in this run"):
            again(shop.batch(0, [2]), 0)  # type: ignore[arg-type]
    shop.spark.run = "run-2"
    batch = shop.batch(0, [1])
    shop.restarted()(batch, 0)  # type: ignore[arg-type]
    assert batch.drained == 1
    assert shop.shown() == [[1], [1]]


def test_what_is_decided_is_committed_before_the_block_runs(shop: Shop) -> None:
    def die(step: Step) -> None:
        if step is Step.DECIDE_AFTER:
            raise SystemExit(step)

    with hooked(die), pytest.raises(SystemExit):
        shop.batches(shop.batch(0, [1]), 0)  # type: ignore[arg-type]
    assert shop.shown() == [[], []]
    shop.spark.run = "run-2"
    batch = shop.batch(0, [1])
    with shop.restarted().epoch(batch, 0) as epoch:  # type: ignore[arg-type]
        assert shop.shown() == [[1], [1]]
        epoch.write(batch, shop.one)  # type: ignore[arg-type]
    assert shop.shown() == [[1], [1]]


@pytest.mark.parametrize("early", [True, False])
def test_an_epoch_that_is_not_open_takes_nothing(shop: Shop, early: bool) -> None:
    batch = shop.batch(0)
    epoch = shop.batches.epoch(batch, 0)  # type: ignore[arg-type]
    if not early:
        with epoch:
            pass
    with pytest.raises(ConfigurationError, match="not open"):
        epoch.write(batch, shop.one)  # type: ignore[arg-type]
    assert shop.shown() == [[], []]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            lambda shop: (shop.batch(0), TargetSink(shop.one.target, "one")),
            "sink one is not one of this pipeline's sinks",
        ),
        (lambda shop: (shop.batch(0), "one"), "a str is not one of"),
        (lambda shop: ([1, 2], shop.one), "write takes a DataFrame; given: list"),
    ],
)
def test_what_cannot_be_written_is_called_by_its_name(
    shop: Shop, given: Callable[[Shop], tuple[Any, Any]], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words), shop.batches.epoch(shop.batch(0), 0) as epoch:  # type: ignore[arg-type]
        epoch.write(*given(shop))
    assert read(shop.store).newest is None


def test_a_block_that_failed_and_is_opened_again_writes_only_what_it_describes_then(shop: Shop) -> None:
    batch = shop.batch(0, [1])
    epoch = shop.batches.epoch(batch, 0)  # type: ignore[arg-type]

    def fails() -> None:
        with epoch:
            epoch.write(batch, shop.one)  # type: ignore[arg-type]
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    with epoch:
        epoch.write(batch, shop.one)  # type: ignore[arg-type]
    assert shop.shown() == [[1], []]


def test_a_block_whose_write_was_refused_can_be_opened_again(shop: Shop) -> None:
    batch = shop.batch(0, [1])
    epoch = shop.batches.epoch(batch, 0)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a str is not one"), epoch:
        epoch.write(batch, "one")  # type: ignore[arg-type]
    with epoch:
        epoch.write(batch, shop.one)  # type: ignore[arg-type]
    assert shop.shown() == [[1], []]
