"""Describing a pipeline changes nothing: what targets lack is made when it starts, and bad columns are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward import (
    CheckpointConfig,
    FileBackend,
    FileSink,
    HttpSink,
    KafkaSink,
    Pipeline,
    PostgresSink,
    RedisSink,
    RocksDBBackend,
    SequenceSource,
    SqlAlchemySink,
)
from onceward.cli.explain import explaining
from onceward.connectors.spark.session.starting import prepare_at_start
from onceward.connectors.spark.write.handler import driven_sinks
from onceward.core.errors import ConfigurationError, OncewardWarning, SchemaError
from onceward.core.log import MemoryStore

from .engine_kit import ByKey
from .sink_kit import TargetSink, target_called
from .spark_kit import Query

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])
NOBODY = "127.0.0.1:1"


def sinks(folder: Path) -> dict[str, Any]:
    """Sinks of all kinds, which would make something at a start, and of which none finds a server."""
    return {
        "files": FileSink("files", folder / "files"),
        "http": HttpSink("http", folder / "http", url=f"http://{NOBODY}/x"),
        "redis": RedisSink("redis", folder / "redis", url=f"redis://{NOBODY}", key="k:{n}", form="hash"),
        "kafka": KafkaSink("kafka", bootstrap_servers=NOBODY, topic="t", create_topic=True),
        "sqlite": SqlAlchemySink("sqlite", url=f"sqlite:///{folder}/db", table="t", create_table=True, key=["n"]),
        "postgres": PostgresSink("pg", dsn=f"postgresql://u@{NOBODY}/d", table="t", create_table=True, key=["n"]),
    }


@pytest.mark.parametrize("kind", ["files", "http", "redis", "sqlite", "postgres"])
def test_a_sink_checks_columns_without_its_target_and_makes_nothing(tmp_path: Path, kind: str) -> None:
    sink = sinks(tmp_path)[kind]
    sink.check_schema(SCHEMA)
    with pytest.raises((SchemaError, ConfigurationError), match=sink.name):
        sink.check_schema(pa.schema([("n", pa.int64()), ("n", pa.int64())]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "schema", "words"),
    [
        ("kafka", pa.schema([("n", pa.int64())]), "value"),
        ("sqlite", pa.schema([("word", pa.string())]), "key columns \\['n'\\] are not in the data"),
        ("postgres", pa.schema([("word", pa.string())]), "key columns \\['n'\\] are not in the data"),
        ("redis", pa.schema([("word", pa.string())]), "n"),
    ],
)
def test_a_column_that_a_setting_needs_is_missed_before_the_start(
    tmp_path: Path, kind: str, schema: pa.Schema, words: str
) -> None:
    with pytest.raises((SchemaError, ConfigurationError), match=words):
        sinks(tmp_path)[kind].check_schema(schema)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("store", ["{}/log", "file://{}/log", "sqlite:///{}/log.db"])
@pytest.mark.parametrize("backend", [FileBackend, RocksDBBackend])
def test_a_pipeline_makes_its_store_and_its_targets_when_it_starts(
    tmp_path: Path, store: str, backend: Callable[[Path], Any]
) -> None:
    pipeline = Pipeline(
        "p", checkpointing=CheckpointConfig(), store=store.format(tmp_path), backend=backend(tmp_path / "state")
    )
    rows = pipeline.source(SequenceSource([{"n": 1, "word": "a"}]))
    rows.sink(FileSink("files", tmp_path / "files"))
    rows.sink(SqlAlchemySink("sqlite", url=f"sqlite:///{tmp_path}/db", table="t", create_table=True))
    assert not list(tmp_path.iterdir())
    pipeline.run()
    assert {"db", "files"} < {path.name for path in tmp_path.iterdir()}
    assert list(tmp_path.glob("log*"))


@pytest.mark.parametrize(("store", "words"), [("", "store is empty"), ("hdfs://n/x", "cannot hold a decision log")])
def test_a_store_that_holds_no_log_is_refused_before_the_start(store: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Pipeline("p", store=store)


class Making(TargetSink):
    """A sink that notes when it would make something."""

    def validate(self, schema: pa.Schema) -> None:
        assert schema == SCHEMA
        self.target.aborted.append("made")


class Writer:
    """A DataStreamWriter of Spark's."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []

    def start(self, **options: Any) -> str:
        self.started.append(options)
        return "query"


def test_a_query_validates_its_targets_at_its_start_and_not_before(tmp_path: Path) -> None:
    query = Query(tmp_path)
    sink, writer = Making(str(tmp_path)), Writer()
    handler = query.driver(sinks=[sink], schemas={sink.name: SCHEMA})
    watched: list[str] = []
    prepare_at_start(writer, lambda: handler.prepare(None), watched.append)
    assert not sink.target.aborted
    with pytest.raises(ConfigurationError, match="would replace what exactly_once has set up"):
        writer.start(format="parquet")
    assert not sink.target.aborted
    assert writer.start(queryName="q") == "query"
    assert writer.started == [{"queryName": "q"}]
    assert sink.target.aborted == ["made"]
    assert watched == ["query"]


def test_a_query_that_is_explained_validates_nothing() -> None:
    made: list[str] = []
    writer = Writer()
    prepare_at_start(writer, lambda: made.append("made"), made.append)
    with explaining():
        writer.start()
    assert not made
    assert writer.started == [{}]


def test_targets_are_validated_after_what_is_decided_is_finished(tmp_path: Path) -> None:
    query = Query(tmp_path)
    sink = Making(query.key)
    handler = query.driver(sinks=[sink], schemas={sink.name: SCHEMA})
    undecided: Any = SimpleNamespace(undone="epoch 0")
    handler.prepare(undecided)
    assert "made" not in sink.target.aborted
    query.run(0, handler=handler)
    assert "made" in sink.target.aborted


class Endless(SequenceSource):
    """Rows after which more may come."""

    @property
    def bounded(self) -> bool:
        return False


def test_a_warning_is_at_the_line_of_the_program() -> None:
    with pytest.warns(OncewardWarning, match="has no store") as caught:
        Pipeline("p")
    assert [Path(warning.filename).name for warning in caught] == ["test_starting.py"]
    pipeline = Pipeline("p", store=MemoryStore())
    pipeline.source(Endless([{"n": 1}])).sink(TargetSink("warned"))
    with pytest.warns(OncewardWarning, match=r"never ends: nothing is committed .* Give checkpointing=") as caught:
        job = pipeline.start()
    job.stop()
    assert [Path(warning.filename).name for warning in caught] == ["test_starting.py"]
    with pytest.warns(OncewardWarning, match="sink by_key guarantees only effectively-once") as caught:
        driven_sinks([ByKey(target_called("warned"))])
    assert [Path(warning.filename).name for warning in caught] == ["test_starting.py"]


def test_a_program_that_configures_no_logging_sees_no_log_line() -> None:
    code = "import logging, onceward; logging.getLogger('onceward.spark').warning('seen')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    code = f"import logging; logging.basicConfig(); {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "WARNING:onceward.spark:seen" in done.stderr
