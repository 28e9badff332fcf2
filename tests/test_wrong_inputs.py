"""A wrong address fails within 10 s with the client's own reason, and no client library writes to the terminal."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from onceward import (
    FileSink,
    FileSource,
    HttpSink,
    KafkaSink,
    KafkaSource,
    Pipeline,
    PostgresSink,
    RedisSink,
    SequenceSource,
    SqlAlchemySink,
    exactly_once,
    read_stream,
)
from onceward.connectors.kafka.admin import make_client
from onceward.connectors.kafka.positions import AtTime, Partition, parse_bound
from onceward.connectors.spark.read.kafka_offsets import checked_source
from onceward.connectors.spark.session.query import checked_folder
from onceward.core.errors import ConfigurationError, ExternalError, KafkaError
from onceward.core.log import DirectoryStore
from onceward.core.run.pipeline_log import open_pipeline_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MESSAGES = pa.schema([("value", pa.string())])


def refused(ask: Callable[[], object]) -> tuple[float, str]:
    """Seconds until it fails, and the message."""
    began = time.monotonic()
    with pytest.raises(ExternalError) as caught:
        ask()
    return time.monotonic() - began, str(caught.value)


def format_sink(servers: str) -> KafkaSink:
    return KafkaSink.from_options({"kafka.bootstrap.servers": servers, "topic": "paid"})


@pytest.mark.slow
def test_a_broker_that_is_not_there_is_told_within_10_s_with_the_reason() -> None:
    attempts: dict[str, Callable[[], object]] = {
        "127.0.0.1:1": lambda: KafkaSource(bootstrap_servers="127.0.0.1:1", topics=["orders"]).validate(),
        "127.0.0.1:2": lambda: checked_source({"kafka.bootstrap.servers": "127.0.0.1:2", "subscribe": "orders"}),
        "127.0.0.1:3": lambda: KafkaSink("k", bootstrap_servers="127.0.0.1:3", topic="paid").validate(MESSAGES),
        "127.0.0.1:4": lambda: format_sink("127.0.0.1:4").validate(MESSAGES),
    }
    with ThreadPoolExecutor(len(attempts)) as pool:
        answers = dict(zip(attempts, pool.map(refused, attempts.values()), strict=True))
    for address, (seconds, message) in answers.items():
        assert seconds < 10, message
        assert f"{address}: " in message
        assert "no broker answers" in message
        assert "Connection refused" in message


@pytest.mark.parametrize(
    ("df", "sinks", "words"),
    [
        (SimpleNamespace(isStreaming=True), [KafkaSink], "given: the class KafkaSink (give an instance)"),
        (SimpleNamespace(isStreaming=True), ["paid"], "given: str"),
        (SimpleNamespace(isStreaming=True), [[]], "unpack it: *sinks"),
        (
            [1, 2],
            [KafkaSink("k", bootstrap_servers="b:1", topic="t")],
            "a streaming DataFrame, and then the sinks; given first: list",
        ),
        (KafkaSink, [], "given first: the class KafkaSink (give an instance)"),
    ],
)
def test_what_is_no_streaming_data_frame_or_no_sink_is_called_by_its_name(
    df: Any, sinks: list[Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        exactly_once(df, *sinks, pipeline="p")


STREAM: Any = SimpleNamespace(isStreaming=True)
SINK = KafkaSink("k", bootstrap_servers="b:1", topic="t")
_SINKS = (KafkaSink, FileSink, HttpSink, RedisSink, PostgresSink, SqlAlchemySink, exactly_once)
_TAKE = (*_SINKS, KafkaSource, FileSource, SequenceSource, Pipeline, read_stream, checked_folder, open_pipeline_log)
UNTYPED: Any = SimpleNamespace(**{each.__name__: each for each in _TAKE})
"""For arguments that a type checker would refuse."""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: UNTYPED.KafkaSink("k", bootstrap_servers="b:1", topic=["paid"]), "topic must be text, not list"),
        (
            lambda: UNTYPED.KafkaSink("k", bootstrap_servers="b:1", select="user AS key"),
            "select must be a list, not str",
        ),
        (lambda: UNTYPED.KafkaSink("k", bootstrap_servers="b:1", where=5), "where must be text, not int"),
        (lambda: UNTYPED.KafkaSource(bootstrap_servers="b:1", topics="orders"), "topics must be a list, not str"),
        (
            lambda: UNTYPED.KafkaSource(bootstrap_servers="b:1", topics=["t"], timeout="3"),
            "timeout must be a number, not str",
        ),
        (lambda: UNTYPED.FileSink("f", "x", roll_bytes="5"), "roll_bytes must be a whole number, not str"),
        (lambda: UNTYPED.HttpSink("h", "x", url="http://x", timeout="3"), "timeout must be a number, not str"),
        (
            lambda: UNTYPED.HttpSink("h", "x", url="http://x", headers="X: y"),
            "headers must be a mapping of names to values, not str",
        ),
        (
            lambda: UNTYPED.HttpSink("h", "x", url="http://x", headers={b"X": "y"}),
            "the names in headers must be text, not bytes",
        ),
        (
            lambda: UNTYPED.HttpSink("h", "x", url="http://x", longest_wait=float("nan")),
            "longest_wait must be 0 seconds or more and at most a day, not nan",
        ),
        (
            lambda: UNTYPED.HttpSink("h", "x", url="http://x", rows_per_send=2**63),
            "rows_per_send must be 1 or more, and at most 9223372036854775807",
        ),
        (
            lambda: UNTYPED.KafkaSink("k", bootstrap_servers="b:1", config=[("a", "b")]),
            "config must be a mapping of names to values, not list",
        ),
        (lambda: UNTYPED.FileSource(None), "folder must be text, not NoneType"),
        (lambda: UNTYPED.FileSource("x", bounded="no"), "bounded must be true or false, not str"),
        (lambda: UNTYPED.FileSource("x", schema={"a": "int"}), "schema must be a pyarrow.Schema, not dict"),
        (
            lambda: UNTYPED.read_stream(STREAM, SequenceSource([]), max_rows="5"),
            "max_rows must be a whole number, not str",
        ),
        (lambda: UNTYPED.SequenceSource("ab"), "rows must be a pyarrow.Table or dicts"),
        (
            lambda: SequenceSource([{"n": 1}, {"N": 2}], schema=pa.schema({"n": pa.int64()})),
            "rows have fields ['N'], which are not in the schema ['n']",
        ),
        (
            lambda: UNTYPED.RedisSink("r", "x", url="redis://x", key="k", durable="no"),
            "durable must be true or false, not str",
        ),
        (lambda: UNTYPED.PostgresSink("p", dsn="", table="t", key=5), "key must be a list or text, not int"),
        (
            lambda: UNTYPED.SqlAlchemySink("p", url="sqlite://", table="t", proof="no"),
            "proof must be true or false, not str",
        ),
        (
            lambda: UNTYPED.exactly_once(STREAM, SINK, commit_timeout="5m", pipeline="p"),
            "commit_timeout must be a number, not str",
        ),
        (lambda: UNTYPED.exactly_once(STREAM, SINK, on_lost=None, pipeline="p"), "on_lost must be text, not NoneType"),
        (lambda: UNTYPED.Pipeline("p", on_lost=5), "on_lost must be text, not int"),
        (lambda: UNTYPED.Pipeline("p", checkpointing=5), "checkpointing must be a CheckpointConfig, not int"),
        (lambda: UNTYPED.Pipeline("p", restart="none"), "restart must be a RestartStrategy, not str"),
        (
            lambda: UNTYPED.Pipeline("p", backend="memory"),
            "backend must be a MemoryBackend, a FileBackend or a RocksDBBackend, not str",
        ),
        (lambda: UNTYPED.Pipeline("p", store=5), "store must be a folder, a URL or a LogStore, not int"),
        (lambda: UNTYPED.Pipeline("p", parallelism="2"), "parallelism must be a whole number, not str"),
        (
            lambda: UNTYPED.exactly_once(STREAM, SINK, adopt="false", pipeline="p"),
            "adopt must be true or false, not str",
        ),
        (lambda: UNTYPED.exactly_once(STREAM, SINK, rewind=True, pipeline="p"), "rewind must be text, not bool"),
        (
            lambda: UNTYPED.exactly_once(STREAM, SINK, on_complete=5, pipeline="p"),
            "on_complete must be a function, not int",
        ),
        (lambda: UNTYPED.checked_folder(STREAM, 5), "checkpoint must be text, not int"),
        (lambda: UNTYPED.checked_folder(STREAM, " "), "checkpoint is empty"),
        (lambda: UNTYPED.open_pipeline_log(5, "/x", "p"), "store must be a folder, a URL or a LogStore, not int"),
        (lambda: UNTYPED.open_pipeline_log("", "/x", "p"), "store is empty"),
    ],
)
def test_an_argument_of_another_type_is_called_by_its_name(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        make()


def test_numbers_of_numpy_and_paths_are_numbers_and_text(tmp_path: Path) -> None:
    assert UNTYPED.FileSink("f", tmp_path, roll_bytes=np.int64(5), proof=np.bool_(False)).roll_bytes == 5
    assert isinstance(UNTYPED.open_pipeline_log(tmp_path / "log", "", "p"), DirectoryStore)
    assert UNTYPED.Pipeline("p", store=tmp_path / "log").setup.store.url == str(tmp_path / "log")
    source = UNTYPED.KafkaSource(
        bootstrap_servers="b:1", topics=("t",), timeout=np.float32(3), max_offsets_per_trigger=np.int8(9)
    )
    assert source.max_offsets_per_trigger == 9
    sink = UNTYPED.HttpSink("h", tmp_path, url="http://x", retry_statuses=range(420, 430))
    assert 429 in sink.retry_statuses
    for topics in (np.array(["a", "b"]), dict.fromkeys("ab").keys(), deque("ab")):
        assert UNTYPED.KafkaSource(bootstrap_servers="b:1", topics=topics).selection.topics == ("a", "b")


@pytest.mark.parametrize("time", [-1, -2, -(2**70), 2**63])
def test_a_time_that_kafka_takes_for_something_else_is_refused(time: int) -> None:
    """-1 would be the end, and everything before it would be left out in silence."""
    makes: list[Callable[[], object]] = [
        lambda: AtTime(time),
        lambda: AtTime(of=((Partition("t", 0), time),)),
        lambda: checked_source(
            {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "startingTimestamp": str(time)},
        ),
    ]
    for make in makes:
        with pytest.raises(ConfigurationError, match="ms since 1970"):
            make()


def test_an_offset_that_no_partition_can_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="offsets are 0 to"):
        parse_bound({"t": {"0": 2**63}}, "startingOffsets")


def test_a_setting_that_librdkafka_does_not_know_is_told_with_whose_names_count() -> None:
    with pytest.raises(ConfigurationError, match=r'"buffer.memory"\. They have librdkafka\'s names') as refused:
        make_client(Producer, {"buffer.memory": "1"})
    assert "docs/" not in str(refused.value)


@pytest.mark.parametrize("make", [checked_source, format_sink, KafkaSource, KafkaSink], ids=lambda make: make.__name__)
@pytest.mark.parametrize("address", ["localhost", "http://localhost:9092", "localhost:port", ""])
def test_an_address_that_is_none_is_told_at_once(make: Callable[..., object], address: str) -> None:
    arguments: dict[object, tuple[tuple[object, ...], dict[str, object]]] = {
        checked_source: (({"kafka.bootstrap.servers": address, "subscribe": "orders"},), {}),
        format_sink: ((address,), {}),
        KafkaSource: ((), {"bootstrap_servers": address, "topics": ["orders"]}),
        KafkaSink: (("k",), {"bootstrap_servers": address, "topic": "paid"}),
    }
    given, named = arguments[make]
    with pytest.raises(ConfigurationError, match=r"bootstrap_servers (\(kafka.bootstrap.servers\)|is empty)"):
        make(*given, **named)


NOBODY = """
import contextlib, logging, sys, time
logging.basicConfig(level=sys.argv[1])
from onceward.connectors.kafka.producer import DeliveryFailures, _made
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.connectors.kafka.wire import Wire
Wire({"bootstrap_servers": "127.0.0.1:1"}).nodes(seconds=1)
producer = _made(KafkaSettings("127.0.0.1:1", None), "id", 1000, {}, DeliveryFailures())
with contextlib.suppress(Exception):
    producer.init_transactions(1)
producer.poll(0)
"""


@pytest.mark.parametrize(("level", "shown"), [("WARNING", False), ("INFO", True)])
def test_client_libraries_are_quiet_while_no_broker_answers(level: str, shown: bool) -> None:
    done = subprocess.run([sys.executable, "-c", NOBODY, level], capture_output=True, text=True, check=True)
    assert "WARNING" not in done.stderr
    assert "ERROR" not in done.stderr
    assert ("INFO:onceward.kafka.librdkafka:FAIL" in done.stderr) is shown
    assert shown or not done.stderr


def test_that_no_broker_answers_is_an_error_that_may_pass() -> None:
    from onceward.connectors.kafka.admin import check_reachable
    from onceward.connectors.kafka.settings import KafkaSettings

    with pytest.raises(KafkaError, match=r"no broker answers at 127.0.0.1:1: .*Connection refused") as caught:
        check_reachable(KafkaSettings("127.0.0.1:1", None), seconds=0.5)
    assert caught.value.retryable
