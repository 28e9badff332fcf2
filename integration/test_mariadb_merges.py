"""What only a merge of MariaDB needs is known before the decision: triggers and all that they reach, and numbers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import ConfigurationError, SchemaError, SqlError

from .mariadb_kit import PROGRAM, running_mariadb
from .postgres_kit import SCHEMA, context, expected, words, write
from .sql_kit import MariaDatabase, maria_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from onceward.connectors.merged.sink import SqlAlchemySink

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="MariaDB's server is not installed")


@pytest.fixture(scope="module")
def mariadb_url() -> Iterator[str]:
    with running_mariadb() as running:
        yield running.url


@pytest.fixture
def merged(mariadb_url: str) -> Iterator[MariaDatabase]:
    with maria_database(mariadb_url) as made:
        made.run("CREATE TABLE words (id bigint PRIMARY KEY, word varchar(20))")
        made.run("CREATE TABLE audit (n bigint AUTO_INCREMENT PRIMARY KEY, id bigint NOT NULL)")
        yield made


@pytest.fixture(params=["staging", "upsert"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def commit(sink: SqlAlchemySink, batch: pa.RecordBatch, epoch: int) -> None:
    sink.validate(batch.schema)
    assert sink.commit(write(sink, context(epoch), batch)).status is CommitStatus.COMMITTED


def trigger(body: str, when: str = "AFTER INSERT", definer: str = "") -> str:
    return f"CREATE {definer} TRIGGER t {when} ON words FOR EACH ROW {body}"


AUDITED = "INSERT INTO audit (id) VALUES (new.id)"
GONE = "DEFINER=gone@localhost"
FAILING = {
    "a definer who is gone": (trigger(AUDITED, definer=GONE), "gone.*code 1449.*DEFINER who exists"),
    "the same, before the row": (trigger("SET new.word = 'x'", "BEFORE INSERT", GONE), "gone.*code 1449"),
    "a definer without the right": (trigger(AUDITED, definer="DEFINER=few@localhost"), "few.*code 1142.*GRANT"),
    "a column that is missing": (trigger("INSERT INTO audit (gone) VALUES (1)"), "gone.*code 1054"),
    "a column too few": (trigger("INSERT INTO audit VALUES (1)"), "Column count.*code 1136"),
    "the table itself": (trigger("UPDATE words SET id = 1"), "code 1442"),
    "a view of one who is gone": (trigger("INSERT INTO shown VALUES (new.id)"), "code (1449|1142)"),
    "a routine of one who is gone": (trigger("CALL noted(new.id)"), "gone.*code 1449"),
}


@pytest.mark.parametrize("why", FAILING)
def test_a_trigger_that_fails_for_every_row_is_found_before_the_decision(
    merged: MariaDatabase, how: str, why: str
) -> None:
    made, cause = FAILING[why]
    merged.run("CREATE OR REPLACE USER few@localhost")
    merged.run("GRANT TRIGGER ON words TO few@localhost")
    merged.run(f"CREATE {GONE} VIEW shown AS SELECT id FROM audit")
    merged.run(f"CREATE {GONE} PROCEDURE noted(id bigint) INSERT INTO audit (id) VALUES (id)")
    sink = merged.sink(how)
    commit(sink, words(1), 1)
    merged.run(made)  # while the pipeline runs
    with pytest.raises(SqlError, match=cause):
        write(sink, context(2), words(4))
    sink.validate(SCHEMA)
    with pytest.raises(SqlError, match=cause):
        write(sink, context(2), words(4))
    assert merged.run("SELECT count(*) FROM onceward_staged") == [(0,)]
    merged.run("DROP TRIGGER t")
    commit(sink, words(4), 3)
    assert merged.rows() == expected(1, 6)


def test_a_definer_who_is_dropped_while_the_pipeline_runs_is_found_before_the_decision(
    merged: MariaDatabase, how: str
) -> None:
    merged.run("CREATE OR REPLACE USER leaving@localhost")
    merged.run(f"GRANT ALL ON {merged.name}.* TO leaving@localhost")
    merged.run(trigger(AUDITED, definer="DEFINER=leaving@localhost"))
    sink = merged.sink(how)
    commit(sink, words(1), 1)
    merged.run("DROP USER leaving@localhost")
    with pytest.raises(SqlError, match=r"leaving.*code 1449"):
        write(sink, context(2), words(4))


@pytest.mark.parametrize("is_there", [False, True])
def test_an_upsert_is_tried_as_an_insert_and_as_an_update(merged: MariaDatabase, is_there: bool) -> None:
    sink = merged.sink("upsert")
    if is_there:
        commit(sink, words(1), 1)
    merged.run(trigger(AUDITED, "AFTER UPDATE", GONE))
    with pytest.raises(SqlError, match=r"gone.*code 1449"):
        write(sink, context(2), words(1))


@pytest.mark.parametrize(
    "body",
    [
        "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'closed'",
        "BEGIN DECLARE n int; SELECT id INTO n FROM audit; END",
        "BEGIN IF new.word REGEXP '(' THEN SET @a = 1; END IF; END",
    ],
)
def test_a_trigger_that_may_refuse_one_row_only_refuses_no_epoch_early(
    merged: MariaDatabase, how: str, body: str
) -> None:
    merged.run("INSERT INTO audit (id) VALUES (1), (2)")
    merged.run(trigger(body))
    sink = merged.sink(how)
    sink.validate(SCHEMA)
    staged = write(sink, context(1), words(1))
    merged.run("DROP TRIGGER t")
    assert sink.commit(staged).status is CommitStatus.COMMITTED


def test_the_trial_of_triggers_leaves_nothing_and_waits_for_nobody(merged: MariaDatabase, how: str) -> None:
    merged.run(trigger("BEGIN INSERT INTO audit (id) VALUES (new.id); UPDATE counted SET n = n + 1; END"))
    merged.run("CREATE TABLE counted (n int)")
    merged.run("INSERT INTO counted VALUES (0)")
    sink = merged.sink(how, lock_timeout=20)
    sink.validate(SCHEMA)
    other = merged.another()
    with other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("UPDATE counted SET n = n + 10")
        begun = time.monotonic()
        staged = write(sink, context(1), words(1))
        assert time.monotonic() - begun < 10
        cursor.execute("COMMIT")
    other.close()
    assert merged.run("SELECT count(*) FROM audit") == [(0,)]
    assert sink.commit(staged).status is CommitStatus.COMMITTED
    assert sorted(merged.run("SELECT id FROM audit")) == [(1,), (2,), (3,)]
    assert merged.run("SELECT n FROM counted") == [(13,)]
    assert merged.run("SELECT @@global.lock_wait_timeout > 0") == [(1,)]


@pytest.mark.parametrize(("kind", "most"), [("tinyint", 127), ("tinyint unsigned", 255), ("mediumint", 8_388_607)])
def test_numbers_that_would_end_are_found_before_the_decision(merged: MariaDatabase, kind: str, most: int) -> None:
    merged.run(f"CREATE OR REPLACE TABLE words (word varchar(20), n {kind} AUTO_INCREMENT PRIMARY KEY)")
    merged.run(f"INSERT INTO words VALUES ('', {most - 5})")
    sink, batch = merged.sink("staging"), words(1).select(["word"])
    commit(sink, batch, 1)
    with pytest.raises(ConfigurationError, match="'n' ends before it has numbered 3 rows: give it a larger type"):
        write(sink, context(2), batch)
    merged.run("ALTER TABLE words MODIFY n bigint AUTO_INCREMENT")
    commit(sink, batch, 3)
    assert [row[1] for row in merged.run("SELECT * FROM words ORDER BY n")] == [*range(most - 5, most + 2)]


@pytest.mark.parametrize("default", ["(concat('a:', 7))", "(NEXT VALUE FOR numbers)", "'it''s'"])
def test_a_column_with_a_default_may_be_left_out(merged: MariaDatabase, how: str, default: str) -> None:
    merged.run("CREATE SEQUENCE numbers")
    merged.run(f"ALTER TABLE words ADD other varchar(20) NOT NULL DEFAULT {default}")
    commit(merged.sink(how), words(1), 1)
    assert all(row[2] for row in merged.rows())


def test_a_type_that_takes_no_data_is_named(merged: MariaDatabase, how: str) -> None:
    merged.run("ALTER TABLE words MODIFY word inet6")
    with pytest.raises(SchemaError, match=r"string does not fit into INET6: .*, for example to VARCHAR"):
        merged.sink(how).validate(SCHEMA)
