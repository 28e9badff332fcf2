"""Spark finds `format("onceward-sql")` by this module's name."""

from onceward.connectors.spark.formats import SqlFormat as DefaultSource

__all__ = ["DefaultSource"]
