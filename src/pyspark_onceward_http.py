"""Spark finds `format("onceward-http")` by this module's name."""

from onceward.connectors.spark.formats.lookup import FoundFormat


class DefaultSource(FoundFormat):
    """`format("onceward-http")`."""

    connector_name = "http"


__all__ = ["DefaultSource"]
