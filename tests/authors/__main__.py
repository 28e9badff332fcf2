"""Print the table of planted mistakes that docs/conformance.md shows: `python -m tests.authors`."""

from __future__ import annotations

from .table import table

print(table())  # noqa: T201 - the point of it
