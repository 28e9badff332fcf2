"""Spark finds `format("onceward-redis")` by this module's name."""

from onceward.connectors.spark.formats.lookup import FoundFormat


class DefaultSource(FoundFormat):
    """`format("onceward-redis")`."""

    connector_name = "redis"


__all__ = ["DefaultSource"]
