"""Options that say where a format publishes its sources' offsets."""

from __future__ import annotations

import pytest

from onceward import SequenceSource
from onceward.connectors.kafka import admin
from onceward.connectors.spark.read import kafka_offsets
from onceward.connectors.spark.read.kafka_offsets import publisher_from_options
from onceward.connectors.spark.session.query_plan import StreamingSource
from onceward.core.errors import ConfigurationError, RetryableSinkError
from onceward.core.log import EpochInput

SERVERS = {"offsets.kafka.bootstrap.servers": "broker:9092"}


def test_without_such_options_nothing_is_published():
    assert publisher_from_options({"kafka.bootstrap.servers": "broker:9092", "topic": "t"}) is None


@pytest.mark.parametrize(
    "options",
    [
        SERVERS,
        {"offsets.kafka.group.id": "g"},
        {**SERVERS, "offsets.kafka.group.id": ""},
        {**SERVERS, "offsets.kafka.group.id": "g", "offsets.topic": "t"},
    ],
)
def test_what_is_missing_or_unknown_is_refused(options: dict[str, str]):
    with pytest.raises(ConfigurationError, match=r"offsets\.kafka\.group\.id"):
        publisher_from_options(options)


def test_a_setting_that_is_refused_is_named():
    with pytest.raises(ConfigurationError, match=r"enable\.auto\.commit"):
        publisher_from_options({**SERVERS, "offsets.kafka.group.id": "g", "Offsets.kafka.enable.auto.commit": "true"})


def test_every_kafka_source_is_published_and_others_are_passed_over(monkeypatch: pytest.MonkeyPatch):
    seen = []
    monkeypatch.setattr(admin, "publish_offsets", lambda _, group, of: seen.append((group, of)))
    publish = publisher_from_options({**SERVERS, "offsets.kafka.group.id": "g"})
    assert publish is not None
    publish(0, EpochInput(query="q", end=['{"a":{"0":5}}', '{"logOffset":3}', "-", '{"a":{"0":4},"b":{"1":7}}', "7"]))
    assert seen == [("g", {"a": {"0": 4}, "b": {"1": 7}})]


def test_after_a_fault_publishing_is_quiet_for_a_minute(monkeypatch: pytest.MonkeyPatch):
    clock, calls = [1000.0], []

    def away(*_: object) -> None:
        calls.append(clock[0])
        raise RetryableSinkError("the broker is away")

    monkeypatch.setattr(admin, "publish_offsets", away)
    monkeypatch.setattr(kafka_offsets.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(kafka_offsets, "_quiet_until", {})
    publish = publisher_from_options({**SERVERS, "offsets.kafka.group.id": "g"})
    assert publish is not None
    for clock[0] in (1000.0, 1001.0, 1059.0, 1061.0):
        publish(0, EpochInput(query="q", end=['{"a":{"0":5}}']))
    assert calls == [1000.0, 1061.0]


class Positioned(SequenceSource):
    """A source that remembers what it published."""

    published: list[object]

    def publish(self, position: object) -> None:
        self.published.append(position)


def test_a_source_of_read_stream_publishes_after_each_epoch_the_last_one_too(monkeypatch: pytest.MonkeyPatch):
    """Spark's own call of `commit` comes a batch late, and never for the last one."""
    source, told = Positioned([{"n": 1}]), []
    source.published = []
    plan = [StreamingSource("onceward-source-1", {}), StreamingSource("rate", {})]
    monkeypatch.setattr(kafka_offsets, "registered_source", {"onceward-source-1": source}.get)
    after = kafka_offsets.with_publication(plan, lambda epoch, _: told.append(epoch))
    assert after is not None
    after(3, EpochInput(query="q", end=['{"at": 5}', "7"]))
    after(4, EpochInput(query="q", end=["-", "9"]))
    assert source.published == [{"at": 5}]
    assert told == [3, 4]
    assert kafka_offsets.with_publication([], None) is None
