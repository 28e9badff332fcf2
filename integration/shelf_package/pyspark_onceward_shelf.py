"""Spark finds `format("onceward-shelf")` by this module's name."""

from shelf.connector import ShelfConnector

from onceward.connectors.spark import format_of

DefaultSource = format_of(ShelfConnector)

__all__ = ["DefaultSource"]
