"""Offsets of a consumer group: written as given, refused loudly, never read."""

import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition

from onceward.connectors.kafka.admin import publish_offsets
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.core.errors import KafkaError

from .kafka_kit import eventually

pytestmark = pytest.mark.kafka


def committed(kafka, group, topic):
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, number) for number in range(2)], timeout=10)
        return {row.partition: row.offset for row in found}
    finally:
        consumer.close()


def test_69_published_offsets_are_the_groups(kafka, topic):
    name, group = topic(partitions=2), f"group-{uuid.uuid4().hex}"
    settings = KafkaSettings(kafka.bootstrap_servers)
    publish_offsets(settings, group, {name: {"0": 12, "1": 0}})
    assert committed(kafka, group, name) == {0: 12, 1: 0}
    publish_offsets(settings, group, {name: {"0": 13}})
    assert committed(kafka, group, name) == {0: 13, 1: 0}
    publish_offsets(settings, group, {})


def test_a_group_with_members_is_not_touched(kafka, topic):
    name, group = topic(partitions=2), f"group-{uuid.uuid4().hex}"
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    consumer.subscribe([name])
    eventually(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "joined")
    with pytest.raises(KafkaError, match=group):
        publish_offsets(KafkaSettings(kafka.bootstrap_servers), group, {name: {"0": 12}})
    consumer.close()


def test_no_broker_is_said(topic):
    with pytest.raises(KafkaError, match="group g"):
        publish_offsets(KafkaSettings("127.0.0.1:1"), "g", {topic(): {"0": 1}})
