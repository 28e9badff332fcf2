"""Spark finds `format("onceward-redis")` by this module's name."""

from onceward.connectors.spark.formats import format_of
from onceward.core.connector import connectors

DefaultSource = format_of(connectors()["redis"])

__all__ = ["DefaultSource"]
