"""Sinks of one pipeline whose tables have foreign keys between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from onceward.connectors.database.sink import PostgresSink, SqlAlchemySink

from .postgres_kit import WORDS, Database
from .sql_kit import write_lines_and_words

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [
    pytest.mark.postgres,
    pytest.mark.tables(
        WORDS,
        "CREATE SCHEMA other",
        "CREATE TABLE other.lines (id bigint PRIMARY KEY, word_id bigint REFERENCES public.words)",
    ),
]


@pytest.mark.parametrize("words", ["words", "public.words"])
@pytest.mark.parametrize("commit", ["auto", "staging"])
def test_rows_that_refer_to_another_sinks_rows_are_staged_and_committed(
    database: Database, tmp_path: Path, words: str, commit: str
) -> None:
    lines = PostgresSink("a", dsn=database.dsn, table="other.lines", commit=commit)
    both = [lines, SqlAlchemySink("words", url=database.dsn, table=words, commit=commit)]
    write_lines_and_words(tmp_path, both)
    assert [sink.commit_path for sink in both] == ["staging", "prepared" if commit == "auto" else "staging"]
    assert [len(database.rows(table)) for table in ("words", "other.lines")] == [3, 3]


@pytest.mark.parametrize("first", ["lines", "words"])
def test_rows_are_deleted_together_with_those_that_refer_to_them(
    database: Database, tmp_path: Path, first: str
) -> None:
    """Inserts need one order of the tables, deletes the other one."""
    changes = {"key": ["id"], "change_column": "op"}
    lines = PostgresSink("lines", dsn=database.dsn, table="other.lines", **changes)
    words = PostgresSink("words", dsn=database.dsn, table="words", **changes)
    both = [lines, words] if first == "lines" else [words, lines]
    for op, left in (("insert", 3), ("delete", 0)):
        write_lines_and_words(tmp_path / op, both, pipeline=op, op=[op])
        assert [len(database.rows(table)) for table in ("words", "other.lines")] == [left, left]


def test_a_table_with_foreign_keys_that_is_prepared_all_the_same_is_told(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    lines = PostgresSink("a", dsn=database.dsn, table="other.lines", commit="prepared")
    lines.validate(pa.schema({"id": pa.int64(), "word_id": pa.int64()}))
    assert "if another sink writes these, use commit='staging'" in caplog.text


def test_a_table_that_refers_to_itself_may_have_two_sinks(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE tree (id bigint PRIMARY KEY, word_id bigint REFERENCES tree)")
    database.run("INSERT INTO tree VALUES (0), (1), (2)")
    sinks = [PostgresSink(name, dsn=database.dsn, table="tree") for name in ("one", "two")]
    write_lines_and_words(tmp_path, sinks, apart=True)
    assert len(database.rows("tree")) == 9
