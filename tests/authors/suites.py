"""What the conformance suite needs of each author's sink, in a module that may hold a planted mistake."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from onceward.testing.conformance import SinkUnderTest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from onceward.core.contract.transaction import Committable


def _run(path: Path, statement: str, *values: str) -> list[Any]:
    with closing(sqlite3.connect(path, timeout=5)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def shelf(module: ModuleType, folder: Path) -> SinkUnderTest:
    path = folder / "shelf.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(module.TABLES)

    def read_rows() -> list[dict[str, Any]]:
        return [json.loads(item) for (item,) in _run(path, "SELECT item FROM shelf ORDER BY id")]

    def delete_prepared(committable: Committable) -> None:
        _run(path, "DELETE FROM staged WHERE name = ?", committable.transaction)

    def take_away() -> None:
        _run(path, "DELETE FROM shelf")

    return SinkUnderTest(
        make=lambda: module.ShelfSink("mine", str(path)),
        read=lambda: [row["n"] for row in read_rows()],
        read_rows=read_rows,
        columns=pa.schema({"text": pa.string(), "yes": pa.bool_(), "list": pa.list_(pa.string())}),
        ordered=True,
        kill=True,
        misfit=pa.schema({"n": pa.int64(), "text": pa.month_day_nano_interval()}),
        take_away=take_away,
        delete_prepared=delete_prepared,
    )


def letters(module: ModuleType, folder: Path) -> SinkUnderTest:
    path = folder / "mailbox.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(module.TABLES)

    def read_rows() -> list[dict[str, Any]]:
        found = _run(path, "SELECT rows FROM letters ORDER BY rowid")
        return [row for (letter,) in found for row in json.loads(letter)]

    return SinkUnderTest(
        make=lambda: module.LettersSink("mine", folder / "log", str(path)),
        read=lambda: [row["n"] for row in read_rows()],
        read_rows=read_rows,
        ordered=True,
        kill=True,
    )


def lines(module: ModuleType, folder: Path) -> SinkUnderTest:
    from onceward.sinks import file_name

    out = folder / "out"

    def read_rows() -> list[dict[str, Any]]:
        texts = [path.read_text() for path in out.glob("*.jsonl")]
        return [json.loads(line) for text in texts for line in text.split("\n") if line]

    def delete(pattern: str) -> None:
        for path in out.glob(pattern):
            path.unlink()

    return SinkUnderTest(
        make=lambda: module.JsonLinesSink("mine", out),
        read=lambda: [row["n"] for row in read_rows()],
        read_rows=read_rows,
        ordered=True,
        kill=True,
        remembers=False,
        take_away=lambda: delete("*.jsonl"),
        delete_prepared=lambda one: delete(f"_{file_name(one.transaction)}.pending"),
    )


def totals(module: ModuleType, folder: Path) -> SinkUnderTest:
    path = folder / "totals.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(module.TABLES)

    def read_rows() -> list[dict[str, Any]]:
        return [{"n": n, "text": text} for n, text in _run(path, "SELECT n, text FROM totals ORDER BY at")]

    return SinkUnderTest(
        make=lambda: getattr(module, module.SINK)("mine", str(path)),
        read=lambda: [row["n"] for row in read_rows()],
        read_rows=read_rows,
        keyed=module.SINK == "TotalsSink",
        kill=True,
    )


SUITES: dict[str, tuple[str, Callable[[ModuleType, Path], SinkUnderTest]]] = {
    "shelf": ("tests/authors/shelf_sink.py", shelf),
    "letters": ("tests/authors/letters_sink.py", letters),
    "lines": ("examples/custom_sink.py", lines),
    "totals": ("tests/authors/totals_sink.py", totals),
    "journal": ("tests/authors/journal_sink.py", totals),
}
"""The file of each sink, and what makes its SinkUnderTest."""
