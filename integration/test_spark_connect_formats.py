"""The formats and the sources of onceward over Spark Connect."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from confluent_kafka import Producer
from pyspark.errors.exceptions.connect import SparkConnectException

from onceward import (
    FileSink,
    FileSource,
    KafkaSink,
    KafkaSource,
    PostgresSink,
    SequenceSource,
    exactly_once,
    explain,
    read_stream,
    register,
)
from onceward.core.errors import ConfigurationError, OncewardWarning

from .connect_kit import remote_functions
from .spark_kit import SCHEMA, Feed, ids_in_table, ids_in_topic, make_table, once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from onceward.testing.services import KafkaServer

    from .connect_kit import ConnectServer

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]
JSON = ["to_json(struct(*)) AS value"]


@pytest.fixture
def session(connect_server: ConnectServer) -> Iterator[SparkSession]:
    with remote_functions():
        client = connect_server.session()
        register(client)
        yield client
        client.stop()


def ids(folder: Path) -> Counter[int]:
    return Counter(ds.dataset(folder).to_table(columns=["id"])["id"].to_pylist())


def finish(frame: DataFrame, folder: Path, *sinks: Any) -> None:
    writer = exactly_once(frame, *sinks, checkpoint=str(folder / "checkpoint"), pipeline=folder.name[:60])
    writer.trigger(availableNow=True).start().awaitTermination()


def produce(servers: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in numbers:
        producer.produce(topic, json.dumps({"id": number}))
    producer.flush()


@pytest.fixture
def topics(topic: Callable[..., str]) -> tuple[str, str]:
    return topic(partitions=2), topic(partitions=2)


@pytest.mark.parametrize("how", ["format", "read_stream"])
def test_the_kafka_source_feeds_kafka_and_postgres_across_restarts(  # noqa: PLR0917 - fixtures
    session: SparkSession, tmp_path: Path, kafka: KafkaServer, topics: tuple[str, str], how: str, dsn: str
) -> None:
    servers, (source, target) = kafka.bootstrap_servers, topics
    make_table(dsn)

    def stream() -> DataFrame:
        if how == "format":
            reader = session.readStream.format("onceward-kafka").option("kafka.bootstrap.servers", servers)
            records = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
        else:
            records = read_stream(
                session, KafkaSource(bootstrap_servers=servers, topics=[source], starting="earliest", group="readers")
            )
        number = "CAST(get_json_object(CAST(value AS string), '$.id') AS long) AS id"
        return records.selectExpr(number).selectExpr("id", "concat('w', id) AS word")

    for rows in (range(20), range(20, 50)):
        produce(servers, source, rows)
        sinks = [
            KafkaSink("topic", bootstrap_servers=servers, topic=target, select=JSON),
            PostgresSink("table", dsn=dsn, table="words"),
        ]
        finish(stream(), tmp_path, *sinks)
        assert ids_in_topic(servers, target) == ids_in_table(dsn) == once(rows.stop)


@pytest.mark.parametrize("name", ["kafka", "onceward-kafka"])
def test_a_start_warns_the_client_that_parts_of_one_partition_are_read_at_the_same_time(
    session: SparkSession, tmp_path: Path, kafka: KafkaServer, topics: tuple[str, str], name: str
) -> None:
    produce(kafka.bootstrap_servers, topics[0], range(20))
    reader = session.readStream.format(name).option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    reader.option("subscribe", topics[0]).option("startingOffsets", "earliest").option("maxRecordsPerPartition", 5)
    frame, sink = reader.load(), KafkaSink("out", bootstrap_servers=kafka.bootstrap_servers, topic=topics[1])
    with pytest.warns(OncewardWarning, match="maxRecordsPerPartition lets several tasks"):
        finish(frame.select("value"), tmp_path, sink)
    assert ids_in_topic(kafka.bootstrap_servers, topics[1]) == once(20)


def test_a_format_writes_each_row_once_across_restarts(session: SparkSession, tmp_path: Path, dsn: str) -> None:
    feed = Feed(tmp_path)
    make_table(dsn)
    for _ in range(2):
        feed.add()
        for name, options in {
            "files": {"path": str(tmp_path / "out")},
            "postgres": {"dsn": dsn, "dbtable": "words"},
        }.items():
            writer = feed.stream(session).writeStream.format(f"onceward-{name}").options(**options)
            checkpoint = str(tmp_path / f"checkpoint-{name}")
            writer = writer.option("checkpointLocation", checkpoint).option("pipeline", name)
            writer.trigger(availableNow=True).start().awaitTermination()
        assert ids(tmp_path / "out") == ids_in_table(dsn) == once(feed.rows)


def test_a_batch_write_under_a_run_key_is_written_once(session: SparkSession, tmp_path: Path) -> None:
    frame = session.range(100).selectExpr("id", "'w' AS word")
    options = {"path": str(tmp_path / "out"), "pipeline": "batch", "runKey": "1", "store": str(tmp_path / "log")}
    for _ in range(2):
        frame.write.format("onceward-files").options(**options).mode("append").save()
    assert ids(tmp_path / "out") == once(100)


@pytest.mark.parametrize("kind", ["files", "sequence"])
def test_any_source_is_read_where_the_server_is(session: SparkSession, tmp_path: Path, kind: str) -> None:
    rows = [{"id": number, "word": "w"} for number in range(20)]
    folder = tmp_path / "feed"
    folder.mkdir()
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = FileSource(folder, format="jsonl") if kind == "files" else SequenceSource(rows)
    finish(read_stream(session, source), tmp_path, FileSink("out", tmp_path / "out"))
    assert ids(tmp_path / "out") == once(20)


def test_a_source_that_the_server_cannot_read_is_named_before_the_query_starts(
    session: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(SparkConnectException, match=str(tmp_path / "nothing")):
        _ = read_stream(session, FileSource(tmp_path / "nothing", format="jsonl")).schema  # the client asks for it now


def test_explain_is_refused_by_name(session: SparkSession, tmp_path: Path) -> None:
    stream = session.readStream.schema(SCHEMA).json(str(Feed(tmp_path).folder))
    writer = exactly_once(
        stream, FileSink("out", tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), pipeline="p"
    )
    with pytest.raises(ConfigurationError, match="of a classic session"):
        explain(writer)
    assert not (tmp_path / "checkpoint").exists()
