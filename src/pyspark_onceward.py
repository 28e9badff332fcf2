"""Spark finds `format("onceward")` by this module's name."""

from onceward.connectors.spark.formats.lookup import FoundFormat


class DefaultSource(FoundFormat):
    """`format("onceward")`."""


__all__ = ["DefaultSource"]
