"""Spark finds `format("onceward-postgres")` by this module's name."""

from onceward.connectors.spark.formats.lookup import FoundFormat


class DefaultSource(FoundFormat):
    """`format("onceward-postgres")`."""

    connector_name = "postgres"


__all__ = ["DefaultSource"]
