"""Spark finds `format("onceward-http")` by this module's name."""

from onceward.connectors.spark.formats import HttpFormat as DefaultSource

__all__ = ["DefaultSource"]
