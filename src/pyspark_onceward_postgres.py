"""Spark finds `format("onceward-postgres")` by this module's name."""

from onceward.connectors.spark.formats import PostgresFormat as DefaultSource

__all__ = ["DefaultSource"]
