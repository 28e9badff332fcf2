"""Spark's read limits, or stand-ins on a pyspark that has none (before 4.2) and never passes any."""

from __future__ import annotations

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    from dataclasses import dataclass

    class ReadLimit:  # type: ignore[no-redef]
        """How much to read."""

    @dataclass
    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """All there is."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most so many rows."""

        max_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A mark that only Spark 4.2 looks for."""

    LIMITS = False
else:
    LIMITS = True

__all__ = ["LIMITS", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]
