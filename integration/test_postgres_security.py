"""PostgreSQL: TLS with verify-full, exactly the documented rights, altered committables, hostile names."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from tests.hostile import TEXTS, check_altered

from onceward import FileBackend, Pipeline, PostgresSink, RestartStrategy, SequenceSource, SqlAlchemySink
from onceward.cli.doctor import run_checks
from onceward.cli.shared_options import Access
from onceward.connectors.database.engines import close_idle
from onceward.connectors.database.postgres.reread import reread_postgres_table
from onceward.core.contract.findings import Health
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import CommitStatus, Observation
from onceward.core.errors import OncewardError, PostgresError, SqlError, StoreError
from onceward.core.kit.crash_points import Step
from onceward.core.log import open_store

from .certificates import make_certificates
from .postgres_kit import (
    SCHEMA,
    SCOPE,
    WORDS,
    Database,
    context,
    data_directory,
    expected,
    fresh_database,
    make_sink,
    running_server,
    words,
    words_table,
    write,
)
from .spark_kit import crash_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.testing.services import PostgresServer

DOCS = Path(__file__).parents[1] / "docs" / "postgres.md"
PASSWORD = "geheim-is-it"
CREATE_WRITER = f"CREATE ROLE writer LOGIN PASSWORD '{PASSWORD}'"
pytestmark = [pytest.mark.postgres, pytest.mark.server(CREATE_WRITER), pytest.mark.tables(WORDS)]


# TLS


@pytest.fixture(scope="module")
def tls_server() -> Iterator[PostgresServer]:
    """PostgreSQL of the system: that of the wheel is built without TLS."""
    with running_server(of_system=True, fsync="off") as running:
        yield running


@pytest.fixture(scope="module")
def authority(tls_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the certificates of a server that takes this role over TLS and with SCRAM only."""
    server = tls_server
    folder, data = make_certificates(tmp_path_factory.mktemp("certificates")), data_directory(server)
    for name in ("server.pem", "server.key"):
        shutil.copy(folder / name, data / name)
        os.chown(data / name, data.stat().st_uid, data.stat().st_gid)
        (data / name).chmod(0o600)
    rules = (data / "pg_hba.conf").read_text()
    mine = "hostssl all writer all scram-sha-256\nhostnossl all writer all reject\n"
    (data / "pg_hba.conf").write_text(mine + rules)
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(CREATE_WRITER)
        for name, value in {"ssl": "on", "ssl_cert_file": "server.pem", "ssl_key_file": "server.key"}.items():
            admin.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
        admin.execute("SELECT pg_reload_conf()")
        while admin.execute("SHOW ssl").fetchone() != ("on",):
            time.sleep(0.01)
        kept = admin.execute("SELECT rolpassword LIKE 'SCRAM-SHA-256$%' FROM pg_authid WHERE rolname = 'writer'")
        assert kept.fetchone() == (True,)
    return folder


@pytest.fixture
def tls_database(tls_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(tls_server) as fresh:
        words_table(fresh)
        yield fresh


def secured(database: Database, folder: Path, *, host: str = "127.0.0.1", ca: str = "ca.pem", user: str = "") -> str:
    """A connection string that trusts this authority alone."""
    who = user or f"writer:{PASSWORD}"
    place = f"postgresql://{who}@{host}:{database.server.port}/{database.name}"
    return f"{place}?sslmode=verify-full&sslrootcert={folder / ca}&require_auth=scram-sha-256&channel_binding=require"


def made(kind: str, dsn: str) -> PostgresSink | SqlAlchemySink:
    if kind == "sqlalchemy":
        return SqlAlchemySink("words", url=dsn, table="words")
    return PostgresSink("words", dsn=dsn, table="words", commit=kind)


@pytest.mark.parametrize("kind", ["prepared", "staging", "sqlalchemy"])
def test_a_sink_writes_over_tls_that_it_has_verified(tls_database: Database, authority: Path, kind: str) -> None:
    tls_database.run(f"GRANT ALL ON DATABASE {tls_database.name} TO writer")
    tls_database.run("GRANT ALL ON words TO writer")
    sink = made(kind, secured(tls_database, authority))
    sink.validate(SCHEMA)
    committable = write(sink, context(), words(1))
    used = "SELECT version FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'writer' AND ssl"
    assert tls_database.run(used)[0][0].startswith("TLSv1.")
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert tls_database.rows() == expected(1)
    close_idle()
    tls_database.run("DROP OWNED BY writer")


WRONG = {
    "another authority": ({"ca": "other/ca.pem"}, "certificate verify failed"),
    "another name": ({"host": "localhost"}, r'for "127.0.0.1".* does not match host name "localhost"'),
    "no such file": ({"ca": "nowhere.pem"}, "root certificate file .* does not exist"),
    "a wrong password": ({"user": "writer:not-the-right-one"}, "password authentication failed"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_server_that_is_not_the_right_one_is_refused_at_once_and_nothing_is_written(
    tls_database: Database, authority: Path, wrong: str
) -> None:
    (authority / "other").mkdir(exist_ok=True)
    if not (authority / "other" / "ca.pem").exists():
        make_certificates(authority / "other")
    changes, says = WRONG[wrong]
    dsn = secured(tls_database, authority, **changes)
    url, began = dsn.replace("postgresql:", "postgresql+psycopg:"), time.monotonic()
    for kind in ("prepared", "staging", "sqlalchemy"):
        with pytest.raises(OncewardError, match=says) as caught:
            made(kind, dsn).validate(SCHEMA)
        assert PASSWORD not in str(caught.value)
        assert "not-the-right-one" not in str(caught.value)
    with pytest.raises(StoreError, match=says) as caught:
        open_store(url, pipeline="orders")
    assert PASSWORD not in str(caught.value)
    found = [
        finding for finding in run_checks(Access(at=[f"postgres={dsn}"]), store=url) if finding.health is Health.FAILED
    ]
    assert {finding.check for finding in found} >= {"postgresql server", "standbys"}
    assert all(
        re.search(says, finding.found) for finding in found if finding.check in {"postgresql server", "standbys"}
    )
    assert PASSWORD not in str(found)
    assert time.monotonic() - began < 30  # of six refusals
    assert tls_database.run("SELECT FROM pg_namespace WHERE nspname = 'onceward'") == []
    assert tls_database.rows() == []


def test_the_store_and_the_doctor_use_tls_that_they_have_verified(tls_database: Database, authority: Path) -> None:
    tls_database.run("GRANT ALL ON SCHEMA public TO writer")
    dsn = secured(tls_database, authority)
    url = dsn.replace("postgresql:", "postgresql+psycopg:")
    with closing(open_store(url, pipeline="orders")) as store:
        assert store.put_if_absent("0" * 20, b"x")
        assert PASSWORD not in store.describe()
    seen = {
        finding.check: finding.health
        for finding in run_checks(Access(at=[f"postgres={dsn}"]), store=url, pipeline="orders")
    }
    assert seen["postgresql server"] is seen["standbys"] is Health.OK
    tls_database.run("DROP OWNED BY writer")


# Rights


def grants(database: Database, kind: str) -> list[str]:
    """What the documentation lists for a kind of sink."""
    needed = {"prepared": (), "staging": ("staging",), "upsert": ("staging", "upserts"),
              "changes": ("staging", "upserts", "change_column")}[kind]  # fmt: skip
    lines = re.findall(r"^GRANT (.+) TO writer;(?:  -- (\w+))?$", DOCS.read_text(), re.MULTILINE)
    assert len(lines) == 12
    chosen = [right for right, used in lines if not used or used in needed]
    return [right.replace("DATABASE shop", f"DATABASE {database.name}") for right in chosen]


def run(database: Database, kind: str, folder: Path, pipeline: str) -> PostgresSink:
    more: dict[str, Any] = {"commit": kind} if kind in ("prepared", "staging") else {"key": ["id"]}
    if kind == "changes":
        more["change_column"] = "op"
    dsn = f"postgresql://writer:{PASSWORD}@{database.dsn.rpartition('@')[2]}"
    sink = PostgresSink("words", dsn=dsn, table="public.words", **more)
    data = [{"id": n, "word": "w", **({"op": "insert"} if kind == "changes" else {})} for n in range(3)]
    store, state = str(folder / pipeline / "log"), FileBackend(folder / pipeline / "state")
    p = Pipeline(pipeline, store=store, backend=state, restart=RestartStrategy.none())
    p.source(SequenceSource(data)).sink(sink)
    p.run()
    return sink


def whole_run(database: Database, kind: str, folder: Path) -> None:
    """One run dies before its decision, one after it; then a third, a rewind, and what is pruned after 1,000 epochs."""
    for step in (Step.PRE_COMMIT_AFTER, Step.COMMIT_BEFORE):
        with crash_at(step), pytest.raises(Exception, match=str(step)):
            run(database, kind, folder, "orders")
    sink = run(database, kind, folder, "orders")
    scope = Scope("orders", "words", database.one("SELECT log FROM onceward.pipelines"))
    sink.ledger().release(scope)
    sink.ledger().completed(scope, 2000)


@pytest.mark.parametrize("kind", ["prepared", "staging", "upsert", "changes"])
def test_the_documented_rights_are_enough_and_each_is_needed(database: Database, tmp_path: Path, kind: str) -> None:
    make_sink(database).validate(SCHEMA)  # an administrator creates the tables
    place = sql.Identifier(database.name)
    database.look.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(place))
    database.run("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    rights = grants(database, kind)
    for right in rights:
        database.run(f"GRANT {right} TO writer")
    whole_run(database, kind, tmp_path)
    assert [row[0] for row in database.rows()] == [0, 1, 2]
    before = database.rows()
    for number, right in enumerate(rights):
        close_idle()
        database.run("DROP OWNED BY writer")
        for other in rights:
            if other != right:
                database.run(f"GRANT {other} TO writer")
        what, where = right.split(" ON ")
        named = "(ledger|logs|pipelines|staged)" if "ALL TABLES" in where else re.split(r"[ .]", where)[-1]
        with pytest.raises(OncewardError, match=rf"permission denied for .*{named}|may not .*{what}.*{named}"):
            run(database, kind, tmp_path, f"without-{number}")
        assert database.rows() == before, right
    close_idle()
    database.run("DROP OWNED BY writer")
    database.look.execute(sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {} TO PUBLIC").format(place))


# Altered committables, hostile names


@pytest.mark.parametrize("kind", ["prepared", "staging", "sqlalchemy"])
def test_an_altered_committable_is_refused_and_touches_nothing(database: Database, kind: str) -> None:
    sink = made(kind, database.dsn)
    good, other = write(sink, context(), words(1)), write(sink, context(2), words(10))

    def state() -> Any:
        tables = database.run(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname IN ('public', 'onceward') ORDER BY 1, 2"
        )
        return database.prepared(), {name: database.rows(".".join(map(quote, name))) for name in tables}

    check_altered(sink, good, state, {"rows", "proof", "handle"})
    assert [sink.commit(c).status for c in (good, other)] == [CommitStatus.COMMITTED] * 2
    assert database.rows() == expected(1) + expected(10)


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


STAGE = "SELECT stage FROM onceward.staged"
MOVES = [
    ("id", "1}'::bigint[]); DROP TABLE words; COMMIT; --"),
    ("id", None),
    ("id", 10**40),
    ("target", ["public", 'words"; DROP TABLE words; --']),
    ("target", "words"),
    ("columns", ['id") SELECT 1; DROP TABLE words; --']),
    ("key", ["'; DROP TABLE words; --"]),
    ("key", [["id"]]),
]


@pytest.mark.parametrize(("field", "value"), MOVES)
def test_an_altered_row_of_staged_runs_no_sql(database: Database, field: str, value: Any) -> None:
    sink = make_sink(database, "staging")
    committable = write(sink, context(), words(1))
    change = "UPDATE onceward.staged SET movement = jsonb_set(movement::jsonb, ARRAY[%s], %s::jsonb)::text"
    database.run(change, field, json.dumps(value))
    for one in (committable, msgspec.structs.replace(committable, handle={})):  # an earlier version knew no digest
        with pytest.raises(OncewardError):
            sink.commit(one)
        assert database.rows() == []
        assert database.staged() == 1


@pytest.mark.parametrize(
    "change",
    [
        "movement = replace(movement, '\"words\"', '\"others\"')",
        'movement = replace(movement, \'"key": []\', \'"key": ["id"]\')',
        "row_count = 2",
        "stage = stage || '_'",
    ],
)
def test_a_row_of_staged_that_is_not_the_decided_one_is_refused(database: Database, change: str) -> None:
    sink = make_sink(database, "staging")
    committable = write(sink, context(), words(1))
    assert [c.identity() for c in sink.lingering(SCOPE)] == [committable.identity()]
    database.run("CREATE TABLE others (LIKE words)")
    kept, stage = database.run("SELECT movement, row_count, stage FROM onceward.staged")[0], database.one(STAGE)
    database.run(f"UPDATE onceward.staged SET {change}")
    database.run(f"DELETE FROM onceward.{stage} WHERE id = 3 AND {change == 'row_count = 2'}")
    assert database.run("SELECT movement, row_count, stage FROM onceward.staged")[0] != kept
    with pytest.raises(PostgresError, match="is not the one that was decided"):
        sink.commit(committable)
    assert database.rows() == database.rows("others") == []
    assert list(sink.inspect_many([committable])) == [Observation.PREPARED]


@pytest.mark.parametrize("stage", ["words", "ledger", 'stage_0"; DROP TABLE words; --'])
def test_a_forged_row_of_staged_empties_no_other_table(
    database: Database, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The writer owns the tables, and whoever may insert into `staged` must not make it empty them in his place."""
    monkeypatch.setattr("onceward.connectors.database.postgres.staging._WORTH_A_TRUNCATE", -1)
    sink = make_sink(database, "staging", ledger_schema="public")
    assert sink.commit(write(sink, context(), words(1))).status is CommitStatus.COMMITTED
    forged = write(sink, context(2), words(10))
    database.run("UPDATE public.staged SET stage = %s", stage)
    [found] = sink.lingering(SCOPE)
    for one in (found, forged):
        with pytest.raises(SqlError, match="is no staging table"):
            sink.abort(one)
    assert database.rows() == expected(1)
    assert len(database.rows("public.ledger")) == 1


def test_another_pipelines_prepared_transaction_is_never_ended(database: Database) -> None:
    sink = make_sink(database)
    theirs = write(sink, context(pipeline="theirs"), words(1))
    mine = write(sink, context(), words(10))
    for field in ("transaction", "pipeline", "log"):
        altered = mine.from_json(mine.to_json().replace(f'"{getattr(mine, field)}"', f'"{getattr(theirs, field)}"'))
        if altered != mine:
            with pytest.raises(OncewardError, match="is not the name of this transaction"):
                sink.commit(altered)
    assert set(database.prepared()) == {mine.transaction, theirs.transaction}


NAMES = [text for text in TEXTS if "\0" not in text and 0 < len(text) < 60 and text[:3] != "pg_"] + [
    "ä" * 31,
    "SELECT",
    "a.b",
    "Ünï:çødé ☃",
]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_of_schemas_tables_and_columns_are_names(
    database: Database, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("onceward.connectors.database.postgres.staging._WORTH_A_TRUNCATE", -1)
    data = pa.record_batch({"id": [1, 2], name: ["a", "b"], "x": ["'; DROP TABLE words; --", "%s :x \\."]})
    for epoch, more in enumerate([{"commit": "prepared"}, {"commit": "staging"}, {"key": [name]}], 1):
        table = f"{quote(name)}.{quote(name[:30] + str(epoch))}"
        sink = PostgresSink("words", dsn=database.dsn, table=table, create_table=True, ledger_schema=name, **more)
        sink.validate(data.schema)
        assert sink.commit(write(sink, context(epoch), data)).status is CommitStatus.COMMITTED
        assert [c.transaction for c in sink.lingering(SCOPE)] == []
        assert database.rows(table) == [tuple(row.values()) for row in data.to_pylist()]
        assert sum(len(piece.rows) for piece in reread_postgres_table(sink.target, SCOPE).pieces) == data.num_rows
    assert database.rows() == []


@pytest.mark.parametrize("name", ["x" * 64, "ä" * 32, "nul\0inside", ""])
def test_names_that_postgresql_would_cut_or_cannot_hold_are_refused(database: Database, name: str) -> None:
    data = pa.record_batch({"id": [1], name: ["a"]})
    for where, batch in ((quote(name), words(1)), ("fresh", data)):
        with pytest.raises(OncewardError):
            PostgresSink("words", dsn=database.dsn, table=where, create_table=True).validate(batch.schema)
    with pytest.raises(OncewardError):
        PostgresSink("words", dsn=database.dsn, table="words", ledger_schema=name).validate(SCHEMA)
    assert database.run("SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == [("words",)]
