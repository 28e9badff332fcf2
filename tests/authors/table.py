"""The table of planted mistakes, by the case that catches each."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from pathlib import Path

FILE = Path(__file__).with_name("mistakes.toml")
SINKS = {
    "lines": "`TwoPhaseCommitSink`, files",
    "shelf": "`TwoPhaseCommitSink`, SQLite",
    "letters": "`WriteAheadLogSink`",
    "totals": "`IdempotentSink`",
    "journal": "`DirectSink`",
}


def table() -> str:
    """Return the table in Markdown."""
    by_case: dict[str, list[str]] = defaultdict(list)
    for mistake in tomllib.loads(FILE.read_text())["mistake"]:
        by_case[mistake["case"]].append(f"{mistake['name']} ({SINKS[mistake['sink']]})")
    rows = [f"| {_words(case)} | {'; '.join(names)} |" for case, names in sorted(by_case.items())]
    return "\n".join(["| case | mistakes that it catches |", "|---|---|", *rows])


def _words(case: str) -> str:
    return case.removeprefix("test_").replace("_", " ")
