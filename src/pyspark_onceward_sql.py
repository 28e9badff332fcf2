"""Spark finds `format("onceward-sql")` by this module's name."""

from onceward.connectors.spark.formats import format_of
from onceward.core.connector import connectors

DefaultSource = format_of(connectors()["sql"])

__all__ = ["DefaultSource"]
