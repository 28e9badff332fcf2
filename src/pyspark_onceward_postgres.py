"""Spark finds `format("onceward-postgres")` by this module's name."""

from onceward.connectors.spark.formats import format_of
from onceward.core.connector import connectors

DefaultSource = format_of(connectors()["postgres"])

__all__ = ["DefaultSource"]
