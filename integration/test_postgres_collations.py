"""Upserts and checks under a collation that takes different texts for one: PostgreSQL's nondeterministic ones.

They need a server built with ICU, which the one of the dev services is not: the system's is taken.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from onceward.connectors.database.sink import PostgresSink
from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import PostgresError

from .postgres_kit import Database, context, write

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.server(of_system=True),
    pytest.mark.tables(
        "CREATE SCHEMA texts",
        """CREATE COLLATION texts."No Case" (provider=icu, locale='und-u-ks-level2', deterministic=false)""",
    ),
]


def people(database: Database, unique: str = 'name COLLATE texts."No Case"', *, column: str = "") -> None:
    database.run(f"CREATE TABLE people (name text {column} NOT NULL, age bigint)")
    database.run(f"CREATE UNIQUE INDEX ON people ({unique})")


def batch(*rows: tuple[str, int], op: str | None = None) -> pa.RecordBatch:
    columns = {"name": pa.array([name for name, _ in rows]), "age": pa.array([age for _, age in rows])}
    return pa.RecordBatch.from_pydict(columns if op is None else {**columns, "op": pa.array([op] * len(rows))})


def upserting(database: Database, **settings: str) -> PostgresSink:
    return PostgresSink("words", dsn=database.dsn, table="people", key=["name"], **settings)


@pytest.mark.parametrize("column", ['COLLATE texts."No Case"', ""], ids=["of the column", "of the index alone"])
def test_an_epoch_with_two_spellings_of_one_key_keeps_the_last_one(database: Database, column: str) -> None:
    people(database, column=column)
    sink = upserting(database)
    sink.validate(batch(("", 0)).schema)
    parts = [
        write(sink, context(subtask=0), batch(("Anna", 1), ("Bert", 2), ("anna", 3))),
        write(sink, context(subtask=1), batch(("ANNA", 4))),
    ]
    assert [outcome.status for outcome in sink.commit_many(parts)] == [CommitStatus.COMMITTED] * 2
    assert [(name.lower(), age) for name, age in database.rows("people")] == [("anna", 4), ("bert", 2)]
    assert sink.commit(write(sink, context(2), batch(("aNNa", 5)))).status is CommitStatus.COMMITTED
    assert sorted(age for _, age in database.rows("people")) == [2, 5]


@pytest.mark.parametrize("column", ['COLLATE texts."No Case"', ""], ids=["of the column", "of the index alone"])
def test_a_delete_finds_its_key_in_any_spelling(database: Database, column: str) -> None:
    people(database, column=column)
    sink = upserting(database, change_column="op")
    for epoch, rows in enumerate([batch(("Anna", 1), ("Bert", 2), op="c"), batch(("ANNA", 0), op="d")], 1):
        assert sink.commit(write(sink, context(epoch), rows)).status is CommitStatus.COMMITTED
    assert database.rows("people") == [("Bert", 2)]


def test_an_index_that_tells_spellings_apart_keeps_them_apart(database: Database) -> None:
    people(database, 'name COLLATE "C"', column='COLLATE texts."No Case"')
    sink = upserting(database)
    assert sink.commit(write(sink, context(), batch(("Anna", 1), ("anna", 2)))).status is CommitStatus.COMMITTED
    assert database.rows("people") == [("Anna", 1), ("anna", 2)]


def test_a_check_means_the_same_before_the_decision_as_at_the_merge(database: Database) -> None:
    people(database, column="""COLLATE texts."No Case" CHECK (name <> 'admin')""")
    with pytest.raises(PostgresError, match="people_name_check"):
        write(upserting(database), context(), batch(("Admin", 1)))


def test_another_collation_of_the_table_makes_another_staging_table(database: Database) -> None:
    people(database, "name")
    write(upserting(database), context(), batch(("Anna", 1)))
    database.run('ALTER TABLE people ALTER name TYPE text COLLATE texts."No Case"')
    sink = upserting(database)
    assert sink.commit(write(sink, context(), batch(("Anna", 1), ("anna", 2)))).status is CommitStatus.COMMITTED
    assert [age for _, age in database.rows("people")] == [2]
