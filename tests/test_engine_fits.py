"""Keyed state belongs to its keys: what would not be found under other ones is refused, as a renamed uid is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from onceward.core import FileBackend, MemoryBackend, ProcessFunction, RestartStrategy, RocksDBBackend, ValueState
from onceward.core.engine import reference
from onceward.core.engine.state import storage
from onceward.core.errors import ConfigurationError
from onceward.core.kit.sealed import seal
from onceward.core.log import MemoryStore
from onceward.sources import SequenceSource

from .engine_kit import decided, pipeline
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onceward.core.engine.pipeline import Stream
    from onceward.types import AggregateFunction

TOTALS: dict[str, tuple[str, AggregateFunction]] = {"total": ("v", "sum"), "rows": ("*", "count")}
BACKENDS: dict[str, Callable[[Path], Any]] = {
    "memory": lambda _: MemoryBackend(),
    "files": lambda path: FileBackend(path / "files"),
    "rocksdb": lambda path: RocksDBBackend(path / "rocksdb"),
}
PER_RUN = 10


class Count(ProcessFunction):
    """Counts the rows of each key."""

    seen = ValueState(0)

    def process(self, record: dict[str, Any], context: Any) -> list[dict[str, Any]]:  # noqa: ARG002 - signature
        self.seen.set(self.seen.get() + 1)
        return [{"key": repr(context.key), "rows": self.seen.get()}]


class Rig:
    """A pipeline's decision log and state; each run reads ten rows more, and ends with a checkpoint."""

    def __init__(self, kind: str, backend: Any) -> None:
        self.store, self.target = MemoryStore(), Target()
        self._backend, self._kind, self._runs = backend, kind, 0

    def run(
        self,
        *keys: str,
        k: Callable[[int], Any] = int,
        v: Callable[[int], Any] = int,
        change: Callable[[Stream], Stream] = lambda stream: stream,
        parallelism: int = 2,
        **options: Any,
    ) -> None:
        """Key by k, unless `keys` are given; `k` and `v` make the values of these columns."""
        rows = [{"k": k(n % 2), "u": n % 2, "v": v(n)} for n in range(PER_RUN * (self._runs + 1))]
        p = pipeline(backend=self._backend, store=self.store, restart=RestartStrategy.none())
        keyed = change(p.source(SequenceSource(rows, batch_rows=4), uid="rows")).key_by(*(keys or ("k",)))
        if self._kind == "process":
            counted = keyed.process(Count(), uid="state", parallelism=parallelism)
        else:
            counted = keyed.aggregate(TOTALS, uid="state", parallelism=parallelism)
        counted.sink(TargetSink(self.target))
        self.target.take_away()
        p.run(**options)
        self._runs += 1

    def goes_on(self, **options: Any) -> None:
        """Run, and check that both keys' counts continue where they were."""
        before = self._runs * PER_RUN // 2
        self.run(**options)
        assert max(Counter(row["rows"] for row in self.target.rows)) == before + PER_RUN // 2


@pytest.fixture(params=["process", "aggregate"])
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param, MemoryBackend())


def test_other_key_columns_are_refused_with_the_choices(rig: Rig):
    rig.run()
    with pytest.raises(ConfigurationError, match=r"operator state has .* k \(int\).* by u \(int\).*another uid"):
        rig.run("u")
    with pytest.raises(ConfigurationError, match=r" k \(int\).* by k \(int\), u \(int\)"):
        rig.run("k", "u")
    rig.goes_on()


@pytest.mark.parametrize("other", [float, str, lambda n: str(n).encode(), bool])
def test_another_type_of_the_key_is_refused_before_anything_is_written(rig: Rig, other: Callable[[int], Any]):
    rig.run()
    entries = len(rig.store.list_keys())
    with pytest.raises(ConfigurationError, match=r"operator state has .* k \(int\).* by k \((double|str|bytes|bool)\)"):
        rig.run(k=other)
    assert len(rig.store.list_keys()) == entries  # refused before START
    rig.goes_on()


@pytest.mark.parametrize("key", [pa.int32(), pa.uint8(), pa.dictionary(pa.int32(), pa.int64())])
def test_what_is_the_same_key_in_another_arrow_type_is_accepted(rig: Rig, key: pa.DataType):
    def cast(batch: pa.RecordBatch) -> pa.RecordBatch:
        column = batch["k"].dictionary_encode() if pa.types.is_dictionary(key) else batch["k"].cast(key)
        return batch.set_column(0, "k", column)

    def other(stream: Stream) -> Stream:
        return stream.map_batches(cast, schema=pa.schema({"k": key, "u": pa.int64(), "v": pa.int64()}))

    rig.run()
    rig.goes_on(change=other)


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_types_of_records_without_a_schema_are_compared_with_the_first_rows(rig: Rig, parallelism: int):
    def as_text(stream: Stream) -> Stream:
        return stream.map(lambda record: {**record, "k": str(record["k"])}, uid="text")

    rig.run(change=lambda stream: stream.map(dict, uid="text"))
    with pytest.raises(ConfigurationError, match=r"operator state has .* k \(int\).* by k \(str\).*allow_non_restored"):
        rig.run(change=as_text, parallelism=parallelism)
    assert not rig.target.rows
    rig.goes_on(change=lambda stream: stream.map(dict, uid="text"), parallelism=parallelism)


def test_another_type_that_is_meant_is_accepted_and_then_belongs_to_the_state(rig: Rig):
    rig.run()
    rig.run(k=str, allow_non_restored_state=True)
    rig.run(k=str)
    rig.run()
    with pytest.raises(ConfigurationError, match=r" k \(int or str\).* by k \(double\)"):
        rig.run(k=float)


def test_keys_under_a_new_name_keep_their_state_if_that_is_said(rig: Rig):
    rig.run()
    rig.run("u", allow_non_restored_state=True)
    assert max(row["rows"] for row in rig.target.rows) == PER_RUN
    with pytest.raises(ConfigurationError, match=r" u \(int\).* by k \(int\)"):
        rig.run()
    rig.run("u")


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_backend_keeps_the_keys_through_rescaling(tmp_path: Path, backend: str):
    rig = Rig("process", BACKENDS[backend](tmp_path))
    for parallelism in (2, 3, 1):
        rig.goes_on(parallelism=parallelism)
    with pytest.raises(ConfigurationError, match="k \\(int\\)"):
        rig.run(k=str)


def test_a_description_without_keys_is_accepted_once_and_then_written_with_them(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    """As an earlier version has written it."""

    def without_keys(metadata: Any) -> bytes:
        fields = msgspec.to_builtins(metadata)
        for record in fields["operators"].values():
            del record["keys"]
            for subtask in record["subtasks"]:
                del subtask["key_types"]
        return seal("onceward-checkpoint", msgspec.json.encode(fields))

    with monkeypatch.context() as patch:
        patch.setattr(reference, "encode_metadata", without_keys)
        patch.setattr(storage, "encode_metadata", without_keys)
        rig.run()
        assert decided(rig.store).operators["state"].keys == []
    rig.goes_on()
    assert decided(rig.store).operators["state"].keys == ["k"]
    with pytest.raises(ConfigurationError, match="k \\(int\\)"):
        rig.run(k=str)


def test_null_keys_fit_with_every_type(rig: Rig):
    rig.run(change=lambda stream: stream.map(lambda record: {**record, "k": None}, uid="map"))
    rig.run(change=lambda stream: stream.map(dict, uid="map"))
    rig.run(change=lambda stream: stream.map(lambda record: {**record, "k": None}, uid="map"))


def test_another_type_of_an_aggregated_column_is_refused_at_the_start():
    rig = Rig("aggregate", MemoryBackend())
    rig.run()
    entries = len(rig.store.list_keys())
    with pytest.raises(ConfigurationError, match=r"operator state has .*sum\(v\) int64.*sum\(v\) double.*another uid"):
        rig.run(v=float)
    assert len(rig.store.list_keys()) == entries
    rig.goes_on()
