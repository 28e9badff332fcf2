"""Spark finds `format("onceward-sql")` by this module's name."""

from onceward.connectors.spark.formats.lookup import FoundFormat


class DefaultSource(FoundFormat):
    """`format("onceward-sql")`."""

    connector_name = "sql"


__all__ = ["DefaultSource"]
