"""Spark finds `format("onceward-kafka")` by this module's name."""

from onceward.connectors.spark.formats.lookup import FoundFormat


class DefaultSource(FoundFormat):
    """`format("onceward-kafka")`."""

    connector_name = "kafka"
    format_of_its_own = "onceward.connectors.spark.formats.kafka_format:KafkaFormat"


__all__ = ["DefaultSource"]
