"""What onceward knows of Kafka beyond its sink and source; imported by every command, so without confluent-kafka."""

from __future__ import annotations

from onceward.core.contract.connector import Connector

_SERVER = r"(?:(?:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?(?:\w[\w.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"


class KafkaConnector(Connector):
    """A Kafka cluster; its settings are those of librdkafka."""

    name = "kafka"
    sink = "onceward.connectors.kafka.sink:KafkaSink"
    source = "onceward.connectors.kafka.source:KafkaSource"
    address_form = "HOST:PORT"
    place_form = "TOPIC"
    extra = "kafka"
    implementation = "onceward.connectors.kafka.kafka_system:KafkaSystem"
    lists_transactions = True
    spark_format = "onceward.connectors.spark.formats.kafka_format:KafkaFormat"
    address_pattern = rf"{_SERVER}(?:,{_SERVER})*"
    place_pattern = r"[\w.][\w.-]{0,248}"
    login = "the settings of the login and of TLS: --set kafka:@FILE"
