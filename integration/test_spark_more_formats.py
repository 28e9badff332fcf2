"""The formats of the other sinks, each on its real target: restarted, replayed, and refused where it would double."""

from __future__ import annotations

import json
import tempfile
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import sqlalchemy
from pyspark.errors import PySparkException, StreamingQueryException

from onceward import FileSink

from .redis_kit import running_valkey
from .spark_kit import Feed, once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


class Target(NamedTuple):
    """A format, its options, and how the target is read."""

    format: str
    options: dict[str, str]
    read: Callable[[], Counter[int]]


def files(folder: Path) -> Iterator[Target]:
    def read() -> Counter[int]:
        found = (folder / "out").rglob("*.jsonl")
        lines = [line for path in found if "_onceward" not in path.parts for line in path.read_text().splitlines()]
        return Counter(json.loads(line)["id"] for line in lines)

    yield Target("onceward-files", {"path": str(folder / "out"), "fileFormat": "jsonl", "partitionBy": "word"}, read)


def any_sink(folder: Path) -> Iterator[Target]:
    """The same sink, by its class."""
    for target in files(folder):
        yield Target("onceward", {"sink": "onceward.connectors.files.sink:FileSink", **target.options}, target.read)


def sql(folder: Path) -> Iterator[Target]:
    engine = sqlalchemy.create_engine(f"sqlite:///{folder}/target.db")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE words (id bigint, word text)"))

    def read() -> Counter[int]:
        with engine.connect() as connection:
            return Counter(row[0] for row in connection.execute(sqlalchemy.text("SELECT id FROM words")))

    yield Target("onceward-sql", {"url": f"sqlite:///{folder}/target.db", "dbtable": "words"}, read)
    engine.dispose()


class Letterbox(BaseHTTPRequestHandler):
    """Takes each idempotency key once."""

    taken: dict[str, list[dict[str, Any]]]

    def do_POST(self) -> None:
        """Take rows."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.setdefault(self.headers["Idempotency-Key"], json.loads(body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Be silent."""


def http(folder: Path) -> Iterator[Target]:
    box = type("Box", (Letterbox,), {"taken": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), box) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/words"

        def read() -> Counter[int]:
            return Counter(row["id"] for rows in box.taken.values() for row in rows)

        options = {"url": url, "folder": str(folder / "wal"), "body": "json", "serverHonorsKeys": "true"}
        yield Target("onceward-http", options, read)
        server.shutdown()


def redis(folder: Path) -> Iterator[Target]:
    with running_valkey() as server:

        def read() -> Counter[int]:
            with server.client() as client:
                return Counter(int(entry["id"]) for _, entry in client.xrange("words"))

        url = f"redis://127.0.0.1:{server.port}/0"
        options = {"url": url, "key": "words", "form": "stream", "folder": str(folder / "wal")}
        yield Target("onceward-redis", options, read)


@pytest.fixture(params=[files, sql, http, redis], ids=lambda make: make.__name__)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    yield from request.param(tmp_path)


def test_append_restart_and_replay(spark: SparkSession, tmp_path: Path, target: Target) -> None:
    feed, checkpoint = Feed(tmp_path), tmp_path / "checkpoint"

    def run() -> None:
        writer = feed.stream(spark).writeStream.format(target.format).options(**target.options)
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    feed.add()
    feed.add()
    run()
    assert target.read() == once(feed.rows)
    newest = max((f for f in (checkpoint / "commits").iterdir() if f.name.isdigit()), key=lambda f: int(f.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    feed.add()
    run()
    assert target.read() == once(feed.rows)


def test_a_batch_with_a_run_key_is_written_once(spark: SparkSession, tmp_path: Path, target: Target) -> None:
    rows = spark.range(30).selectExpr("id", "concat('w', id % 3) AS word")
    for _ in range(2):
        writer = rows.write.format(target.format).options(**target.options).mode("append")
        writer.option("pipeline", "days").option("runKey", "monday").option("store", str(tmp_path / "log")).save()
    assert target.read() == once(30)


def test_a_plain_batch_leaves_no_log_behind(spark: SparkSession, tmp_path: Path) -> None:
    def logs() -> set[Path]:
        return set(Path(tempfile.gettempdir()).glob("onceward-batch*"))

    before, out = logs(), str(tmp_path / "out")
    for _ in range(2):
        spark.range(30).write.format("onceward-files").option("path", out).mode("append").save()
    assert Counter(row["id"] for row in spark.read.parquet(out).collect()) == Counter(2 * list(range(30)))
    broken = spark.range(30).selectExpr("id", "assert_true(id < 20)").write.format("onceward-files")
    with pytest.raises(PySparkException):
        broken.option("path", out).mode("append").save()
    assert spark.read.parquet(out).count() == 60
    assert logs() == before


def test_complete_mode_into_files_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    feed.add()
    counts = feed.stream(spark).groupBy("word").count()
    writer = counts.writeStream.format("onceward-files").option("path", str(tmp_path / "out")).outputMode("complete")
    with pytest.raises(StreamingQueryException, match="output mode complete"):
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert FileSink("files", tmp_path / "out").format == "parquet"


def test_spark_keeps_its_own_partition_by_from_python_data_sources(spark: SparkSession, tmp_path: Path) -> None:
    """docs/files.md says so. If this test fails, Spark now passes the columns on, and the format can use them."""
    rows = spark.range(4).selectExpr("id", "id % 2 AS half")
    batch = rows.write.format("onceward-files").mode("append").option("fileFormat", "jsonl").partitionBy("half")
    with pytest.raises(PySparkException, match=r"partitioning .* do not match"):
        batch.save(str(tmp_path / "batch"))
    feed = Feed(tmp_path)
    feed.add(4)
    stream = feed.stream(spark).writeStream.format("onceward-files").option("fileFormat", "jsonl")
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).partitionBy("word")
    query = stream.option("path", str(tmp_path / "stream")).trigger(availableNow=True).start()
    query.awaitTermination()
    written = list((tmp_path / "stream").rglob("onceward~*.jsonl"))
    assert {path.parent for path in written} == {tmp_path / "stream"}
