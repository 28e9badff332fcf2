"""Spark finds `format("onceward-redis")` by this module's name."""

from onceward.connectors.spark.formats import RedisFormat as DefaultSource

__all__ = ["DefaultSource"]
