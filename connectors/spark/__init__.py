"""Spark: `exactly_once` for several sinks in one decision, and the data source formats."""

from .any_source import read_stream
from .exactly_once import exactly_once
from .formats import register

__all__ = ["exactly_once", "read_stream", "register"]
