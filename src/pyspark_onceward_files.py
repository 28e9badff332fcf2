"""Spark finds `format("onceward-files")` by this module's name."""

from onceward.connectors.spark.formats import FilesFormat as DefaultSource

__all__ = ["DefaultSource"]
