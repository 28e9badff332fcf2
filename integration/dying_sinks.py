"""Sinks for formats, whose driver dies once right after a decision: they are imported by Spark's own processes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceward import FileSink, KafkaSink, PostgresSink, SqlAlchemySink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.core.contract.transaction import CommitOutcome, Committable


def mark_of(name: str) -> Path:
    """Return the file that makes the next commit of the sink of this name die."""
    return Path(tempfile.gettempdir(), f"onceward-test-dies-{name}")


class _Dies:
    name: str

    def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        mark = mark_of(self.name)
        if mark.exists():
            mark.unlink()
            raise RuntimeError("the driver dies here")
        outcomes: Sequence[CommitOutcome] = super().commit_many(committables)  # type: ignore[misc]
        return outcomes


class DyingKafka(_Dies, KafkaSink):
    """Dies before it commits."""


class DyingPostgres(_Dies, PostgresSink):
    """Dies before it commits."""


class DyingSql(_Dies, SqlAlchemySink):
    """Dies before it commits."""


class DyingFiles(_Dies, FileSink):
    """Dies before it commits."""


KINDS: dict[str, Any] = {"kafka": DyingKafka, "postgres": DyingPostgres, "sql": DyingSql, "files": DyingFiles}
