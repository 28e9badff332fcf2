"""Spark finds `format("onceward-kafka")` by this module's name."""

from onceward.connectors.spark.formats import KafkaFormat as DefaultSource

__all__ = ["DefaultSource"]
