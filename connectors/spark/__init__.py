"""Spark: `exactly_once` for several sinks in one decision, and the data source formats."""

from .any_source import read_stream
from .formats import register
from .handler import exactly_once

__all__ = ["exactly_once", "read_stream", "register"]
