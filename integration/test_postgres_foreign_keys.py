"""Sinks of one pipeline whose tables have foreign keys between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onceward.connectors.database.engines import close_idle
from onceward.connectors.database.sinks import PostgresSink, SqlAlchemySink
from onceward.core.errors import ConfigurationError

from .postgres_kit import Database, fresh_database
from .sql_kit import write_lines_and_words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.testing.services import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    with fresh_database(server) as fresh:
        fresh.run("CREATE SCHEMA other")
        fresh.run("CREATE TABLE words (id bigint PRIMARY KEY, word text)")
        fresh.run("CREATE TABLE other.lines (id bigint PRIMARY KEY, word_id bigint REFERENCES public.words)")
        yield fresh
        close_idle()


@pytest.mark.parametrize("words", ["words", "public.words"])
@pytest.mark.parametrize("commit", ["auto", "staging"])
def test_rows_that_refer_to_another_sinks_rows_are_staged_and_committed_after_these(
    database: Database, tmp_path: Path, words: str, commit: str
) -> None:
    lines = PostgresSink("a", dsn=database.dsn, table="other.lines", commit=commit)
    both = [lines, SqlAlchemySink("words", url=database.dsn, table=words, commit=commit)]
    write_lines_and_words(tmp_path, both)
    assert [sink.commit_path for sink in both] == ["staging", "prepared" if commit == "auto" else "staging"]
    assert [len(database.rows(table)) for table in ("words", "other.lines")] == [3, 3]


def test_rows_that_refer_to_another_sinks_rows_cannot_be_prepared(database: Database, tmp_path: Path) -> None:
    lines = PostgresSink("a", dsn=database.dsn, table="other.lines", commit="prepared")
    both = [lines, PostgresSink("words", dsn=database.dsn, table="words")]
    with pytest.raises(ConfigurationError, match=r"foreign key to the table of sink words.*use commit='staging'"):
        write_lines_and_words(tmp_path, both)
