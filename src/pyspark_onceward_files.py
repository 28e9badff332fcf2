"""Spark finds `format("onceward-files")` by this module's name."""

from onceward.connectors.spark.formats.lookup import FoundFormat


class DefaultSource(FoundFormat):
    """`format("onceward-files")`."""

    connector_name = "files"


__all__ = ["DefaultSource"]
