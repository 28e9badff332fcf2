"""Spark finds `format("onceward-http")` by this module's name."""

from onceward.connectors.spark.formats import format_of
from onceward.core.connector import connectors

DefaultSource = format_of(connectors()["http"])

__all__ = ["DefaultSource"]
