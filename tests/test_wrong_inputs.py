"""A wrong address fails within 10 s with the client's own reason, and no client library writes to the terminal."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from onceward import KafkaSink, KafkaSource, exactly_once
from onceward.connectors.kafka.admin import made
from onceward.connectors.spark.kafka_source import checked_source
from onceward.core.errors import ConfigurationError, ExternalError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

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
        exactly_once(df, *sinks)


def test_a_setting_that_librdkafka_does_not_know_is_told_with_whose_names_count() -> None:
    with pytest.raises(ConfigurationError, match=r'"buffer.memory"\. They have librdkafka\'s names') as refused:
        made(Producer, {"buffer.memory": "1"})
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
    with pytest.raises(ConfigurationError, match=r"bootstrap_servers \(kafka.bootstrap.servers\)"):
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
