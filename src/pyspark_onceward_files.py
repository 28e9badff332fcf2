"""Spark finds `format("onceward-files")` by this module's name."""

from onceward.connectors.spark.formats import format_of
from onceward.core.connector import connectors

DefaultSource = format_of(connectors()["files"])

__all__ = ["DefaultSource"]
