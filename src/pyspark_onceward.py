"""Spark finds `format("onceward")` by this module's name."""

from onceward.connectors.spark.formats import AnyFormat as DefaultSource

__all__ = ["DefaultSource"]
