"""Spark finds `format("onceward-kafka")` by this module's name."""

from onceward.connectors.spark.formats import format_of
from onceward.core.connector import connectors

DefaultSource = format_of(connectors()["kafka"])

__all__ = ["DefaultSource"]
