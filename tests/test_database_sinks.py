"""PostgresSink and SqlAlchemySink without a server: settings, secrets, names, choices, and what the ledger proves."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from onceward.connectors.database.capabilities import DATABASES, load_part
from onceward.connectors.database.dialect import Dialect, ServerFacts
from onceward.connectors.database.ledger_tables import LedgerFacts
from onceward.connectors.database.loader import Loader
from onceward.connectors.database.mariadb import MariaDb, Xid, gtrid_of, read_xid
from onceward.connectors.database.postgres.dialect import PostgreSql
from onceward.connectors.database.sink import PostgresSink, SqlAlchemySink, choose_path
from onceward.connectors.database.target import CommitPath, TableName, Url, own_name
from onceward.core.contract.names import Progress, Scope, TransactionName
from onceward.core.contract.place import Place
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Committable, Observation, WriteContext
from onceward.core.errors import ConfigurationError, RetryableSinkError

if TYPE_CHECKING:
    from onceward.connectors.database.sink import DatabaseSink

PASSWORD = "ge heim&%"
DSN = f"host=127.0.0.1 port=1 user=writer dbname=shop password='{PASSWORD}' connect_timeout=1"
URI = "postgresql://writer:ge%20heim%26%25@127.0.0.1:1/shop?connect_timeout=1"
POSTGRES = "postgresql+psycopg://writer:ge%20heim%26%25@127.0.0.1:1/shop?connect_timeout=1"
MARIADB = "mariadb+pymysql://writer:ge%20heim%26%25@127.0.0.1:1/shop"
SQLITE = "sqlite:////var/lib/shop.db"
LOG = "0123abcd"
CONTEXT = WriteContext(pipeline="p", sink="totals", log=LOG, generation=1, epoch=1, subtask=0)


def sink(**settings: Any) -> DatabaseSink:
    """A PostgresSink if it has a dsn, else a SqlAlchemySink."""
    if "dsn" in settings:
        return PostgresSink("totals", **{"table": "public.totals", **settings})
    return SqlAlchemySink("totals", **{"url": POSTGRES, "table": "public.totals", **settings})


REACHED = [{"dsn": DSN}, {"dsn": URI}, {"url": POSTGRES}, {"url": MARIADB}]
BOTH = [{"dsn": DSN}, {"url": POSTGRES}]


# Secrets


@pytest.mark.parametrize("how", [*REACHED, {"url": "postgresql://writer@h/shop?password=geheimnis"}])
def test_a_password_is_never_shown(how: dict[str, Any]) -> None:
    made = sink(**how)
    for text in (repr(made), str(made.target), repr(made.target.url), str(made.target.url), f"{made.__dict__}"):
        assert "heim" not in text
        assert "shop" in text or "totals" in text


@pytest.mark.parametrize("how", [*REACHED, {"url": SQLITE}])
def test_the_sink_survives_pickling_password_included(how: dict[str, Any]) -> None:
    copied = pickle.loads(pickle.dumps(sink(**how)))
    assert copied.target == sink(**how).target
    assert copied.target.url.parsed.password == (None if how == {"url": SQLITE} else PASSWORD)


def test_a_connection_string_becomes_libpqs_parameters_again() -> None:
    assert Url.from_dsn(DSN).libpq()["password"] == Url.of(POSTGRES).libpq()["password"] == PASSWORD


def test_a_url_made_of_parts_may_have_any_sign_in_any_of_them() -> None:
    given = sa.URL.create("postgresql", username="wri@ter", password="ge@h/ei?m", host="h", database="sh@op")
    url = Url.of(given)
    assert "ge@" not in str(url)
    assert pickle.loads(pickle.dumps(url)) == url
    assert url.parsed.database == "sh@op"


@pytest.mark.parametrize("form", [PASSWORD, "ge%20heim%26%25"])
@pytest.mark.parametrize("url", [Url.of(POSTGRES), Url.from_dsn(DSN)])
def test_a_password_is_cut_out_of_messages_in_every_form(url: Url, form: str) -> None:
    assert url.redact(f"cannot use {form} here") == "cannot use *** here"


def test_a_short_password_does_not_show_by_the_holes_it_leaves() -> None:
    dsn = Url.from_dsn("postgresql://u:in@localhost/shop")
    assert dsn.redact("in doubt: connecting as in") == "*** doubt: connecting as ***"
    long = Url.from_dsn("postgresql://u:secret7@localhost/shop")
    assert long.redact("bad uri u:secret7x") == "bad uri u:***x"


AMBIGUOUS = [
    "postgresql://writer:ge@heim@h/shop",
    "mariadb://writer:ge@heim@h:3306/shop",
    "postgresql://writer:ge@h/heim@h/shop",
    "postgresql://writer:ge@h?heim@h/shop",
    "postgresql://wri/ter:geheim@h/shop",
    "postgresql://writer@h/shop?password=ge@heim",
]
NO_URLS = ["geheim", "postgresql//u:geheim@h", "postgresql+psycopg://u:p@h:geheim/db"]
NO_DSNS = ["host=x password=geheim foo", "postgresql://u:ge heim@h/db", "geheim"]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        *(({"url": text}, "url is not a database URL") for text in NO_URLS),
        ({"url": ""}, "url is empty"),
        *(({"url": text}, "percent-encode") for text in AMBIGUOUS),
        *(({"dsn": text}, "dsn is not a PostgreSQL connection string") for text in NO_DSNS),
    ],
)
def test_what_cannot_be_read_or_told_from_a_password_is_refused_and_not_repeated(how: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        sink(**how)
    for part in ("heim", "ge@", "writer", *(["@h/shop"] if why == "percent-encode" else [])):
        assert part not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("dsn", "hint"),
    [
        ("jdbc:postgresql://h/shop?user=writer&password=geheim", "leave out 'jdbc:'"),
        ("postgresql+psycopg://writer:geheim@h/shop", r"leave out the '\+' and the driver"),
    ],
)
def test_of_another_librarys_url_it_is_said_what_to_leave_out(dsn: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"not a PostgreSQL connection string: .*{hint}") as caught:
        sink(dsn=dsn)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("password", ["ge/heim", "ge?heim", "ge:heim", "ge#heim"])
def test_signs_that_a_password_may_hold_as_they_are_hide_with_it(password: str) -> None:
    url = Url.of(f"postgresql://writer:{password}@h/shop")
    assert (url.parsed.password, str(url)) == (password, "postgresql+psycopg://writer:***@h/shop")


@pytest.mark.parametrize("how", REACHED)
def test_a_server_that_is_not_there_may_be_there_later(how: dict[str, Any]) -> None:
    with pytest.raises(RetryableSinkError, match=r"cannot begin.*127\.0\.0\.1") as caught:
        sink(**how, commit="prepared").begin(CONTEXT)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.retryable, again.pipeline) == (str(caught.value), True, "p")
    assert "heim" not in str(again)


def test_the_users_connection_settings_win_over_the_defaults() -> None:
    def parameters(dsn: str) -> dict[str, Any]:
        return PostgreSql().engine_arguments(sink(dsn=dsn).target.access)["creator"].keywords

    several = parameters("host=a,b port=1,2 connect_timeout=3")
    assert (several["connect_timeout"], several["target_session_attrs"]) == ("3", "primary")
    assert (several["host"], several["port"]) == ("a,b", "1,2")
    assert "target_session_attrs" not in parameters("host=a")


@pytest.mark.parametrize(
    "url",
    [
        Url.from_dsn("postgresql://u:geheim@a:1,b:2/d"),
        Url.from_dsn("host=a,b port=1,2 user=u password=geheim dbname=d"),
        Url.of("postgresql+psycopg://u:geheim@/d?host=a:1&host=b:2"),
    ],
)
def test_several_hosts_with_ports_of_their_own_reach_the_driver(url: Url) -> None:
    expected = {"host": "a,b", "port": "1,2", "user": "u", "password": "geheim", "dbname": "d"}
    assert url.libpq() == pickle.loads(pickle.dumps(url)).libpq() == expected
    sa.create_engine(url.parsed)
    assert "geheim" not in str(url)


# Settings


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("postgresql://h/d", "postgresql+psycopg://h/d"),
        ("mariadb://h/d", "mariadb+pymysql://h/d"),
        ("mysql://h/d", "mysql+pymysql://h/d"),
        ("sqlite:////x.db", "sqlite+pysqlite:////x.db"),
    ],
)
def test_each_database_has_one_driver(given: str, used: str) -> None:
    assert str(Url.of(given)) == str(Url.of(used)) == used
    assert Url.of(sa.make_url(given)) == Url.of(used)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("oracle://h/d", "database 'oracle'"),
        ("postgresql+asyncpg://h/d", "driver 'asyncpg'"),
        ("mysql+mysqldb://h/d", "driver 'mysqldb'"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///file:x?mode=memory&uri=true", "in memory"),
        ("sqlite:///file::memory:?cache=shared&uri=true", "in memory"),
    ],
)
def test_other_databases_and_drivers_are_refused_by_name(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        sink(url=url)


PATHS: list[tuple[dict[str, Any], str, str | None]] = [
    ({}, "insert", None),
    ({"mode": "insert"}, "insert", None),
    ({"key": ["id"]}, "upsert", "staging"),
    ({"key": "id", "mode": "upsert"}, "upsert", "staging"),
    ({"commit": "staging"}, "insert", "staging"),
    ({"commit": "prepared"}, "insert", "prepared"),
]


@pytest.mark.parametrize(
    ("settings", "mode", "path"),
    [
        *(({**how, **settings}, mode, path) for how in BOTH for settings, mode, path in PATHS),
        ({"dsn": DSN, "commit": "staging"}, "insert", "staging"),
        ({"dsn": DSN, "commit": "staging", "key": ["id"]}, "upsert", "staging"),
        ({"dsn": DSN, "commit": "prepared"}, "insert", "prepared"),
        ({"url": MARIADB}, "insert", None),
        ({"url": SQLITE}, "insert", "staging"),
        ({"url": SQLITE, "key": "id"}, "upsert", "staging"),
    ],
)
def test_mode_and_commit_say_what_is_written_and_how_it_waits(settings: dict[str, Any], mode: str, path: str) -> None:
    made = sink(**settings)
    assert (made.mode, made.commit_path) == (mode, path)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"mode": "replace"}, "mode 'replace' is unknown"),
    ({"mode": "upsert"}, "needs key"),
    ({"mode": "insert", "key": ["id"]}, "takes no key"),
    ({"key": ["id", "id"]}, "repeated"),
    ({"commit": "later"}, "commit 'later' is unknown"),
    ({"key": ["id"], "commit": "prepared"}, "upsert cannot wait as a prepared transaction"),
    ({"lock_timeout": 0}, "lock_timeout must be above 0"),
    ({"answer_within": -1}, "answer_within must be above 0"),
    ({"ledger_epochs": 0}, "ledger_epochs must be above 0"),
    ({"table": "a.b.c"}, "not a table's name"),
    ({"table": ""}, "table is empty"),
]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        *(({**how, **settings}, why) for how in BOTH for settings, why in CONTRADICTIONS),
        ({"dsn": DSN, "mode": "staging"}, "mode 'staging' is unknown: give one of auto, insert, upsert"),
        ({"dsn": DSN, "change_column": "op"}, "change_column 'op' needs a key"),
        ({"dsn": DSN, "key": "op", "change_column": "op"}, "needs a key that does not contain it"),
        ({"url": SQLITE, "commit": "prepared"}, "SQLite has no prepared transactions"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        sink(**settings)


def test_auto_prepares_only_plain_inserts_on_a_server_that_can() -> None:
    plain, upsert = sink().target, sink(key=["id"]).target
    able, unable = ServerFacts(max_prepared=10), ServerFacts(why_none="max_prepared_transactions is 0: set it")
    assert choose_path(CommitPath.AUTO, plain, able) is CommitPath.PREPARED
    assert choose_path(CommitPath.AUTO, plain, unable) is CommitPath.STAGING
    assert choose_path(CommitPath.AUTO, upsert, able) is CommitPath.STAGING
    with pytest.raises(ConfigurationError, match="max_prepared_transactions is 0: set"):
        choose_path(CommitPath.PREPARED, plain, unable)


OPTIONS = {"dbTable": "public.totals", "KEY": "id, day", "createTable": "TRUE", "lock_timeout": "2.5"}


@pytest.mark.parametrize("how", BOTH)
def test_options_of_spark_make_the_same_sink_in_any_case(how: dict[str, Any]) -> None:
    made = type(sink(**how)).from_options({**OPTIONS, **how, "name": "mine", "ledgerSchema": "Books"})
    same = sink(**how, key=["id", "day"], create_table=True, lock_timeout=2.5, ledger_schema="Books")
    assert (made.target, made.name, made.mode) == (same.target, "mine", "upsert")


@pytest.mark.parametrize("how", BOTH)
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, r"needs the options \['dbtable'\]"),
        ({"dbtable": "t", "tabel": "x"}, r"unknown options \['tabel'\]: did you mean (table|dbtable)\?"),
        ({"dbtable": "t", "pipline": "x"}, r"did you mean pipeline\?.* checkpointLocation"),
        ({"dbtable": "t", "createtable": "perhaps"}, "option createTable is not true or false"),
    ],
)
def test_options_that_cannot_be_read_are_named(how: dict[str, Any], options: dict[str, str], why: str) -> None:
    make = type(sink(**how))
    with pytest.raises(ConfigurationError, match=why) as caught:
        make.from_options({**how, **options})
    assert "heim" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=rf"needs the options \['{next(iter(how))}'\]"):
        make.from_options({"dbtable": "t"})


@pytest.mark.parametrize("missing", ["psycopg", "pgpq", "sqlalchemy"])
def test_what_postgresql_needs_is_missed_when_a_sink_is_made(missing: str) -> None:
    code = (
        f"import sys; sys.modules['{missing}'] = None\n"
        "import onceward\n"
        "try: onceward.PostgresSink('words', dsn='host=h', table='words')\n"
        "except onceward.core.errors.ConfigurationError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert f"needs {missing}: pip install 'onceward[postgres]'" in done.stdout, done.stderr


def test_complete_mode_needs_an_upsert() -> None:
    sink(key="id").validate_complete_mode()
    with pytest.raises(ConfigurationError, match="insert every row again"):
        sink().validate_complete_mode()


@pytest.mark.parametrize("database", DATABASES)
def test_the_entry_of_a_database_names_its_dialect_its_loader_and_its_place(database: str) -> None:
    known = DATABASES[database]
    parts = {known.dialect: Dialect, known.loader: Loader, known.place: Place}
    assert {reference for reference, base in parts.items() if not issubclass(load_part(reference), base)} == set()


# Names


@pytest.mark.parametrize(
    ("text", "fold", "parts"),
    [
        ("t", True, (None, "t")),
        ("Totals", True, (None, "totals")),
        (" public . totals ", True, ("public", "totals")),
        ('"My Schema"."T"', True, ("My Schema", "T")),
        ('"a.b"."say ""hi"""', True, ("a.b", 'say "hi"')),
        ("_x$1", True, (None, "_x$1")),
        ("straße", True, (None, "straße")),
        ("S.T", False, ("S", "T")),
        (' "My Schema" . `a"b` ', False, ("My Schema", 'a"b')),
        ('"a""b"', False, (None, 'a"b')),
    ],
)
def test_table_names_are_read_as_in_sql(text: str, fold: bool, parts: tuple[str | None, str]) -> None:
    parsed = TableName.parse(text, fold=fold)
    assert parsed == parts
    assert TableName.parse(str(parsed), fold=fold) == TableName.parse(parsed.quoted, fold=fold) == parsed


@pytest.mark.parametrize("text", ["", "a b", "1a", "a.", '"', '""', "a;drop", "a.b.c", "x" * 64, '"' + "ü" * 32 + '"'])
def test_what_is_no_table_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"table's name|longer than"):
        TableName.parse(text, fold=True)


@pytest.mark.parametrize(
    "gid",
    [
        "onceward:1:orders-eu:totals:0123abcd:3:7:0:0:89ab",
        "onceward:1:orders:totals2:0123abcd:3:7:0:0:89ab",
        "onceward:1:orders:totals:0123abcd:3:7:0:0",
        "onceward:1:orders:totals:0123abcd:3:7:0:0:89ab:more",
        "onceward:2:orders:totals:0123abcd:3:7:0:0:89ab",
        "orders",
    ],
)
def test_a_gid_that_is_not_exactly_ours_is_not_ours(gid: str) -> None:
    assert own_name("onceward:1:orders:totals:0123abcd:3:7:0:0:89ab", "orders", "totals") is not None
    assert own_name(gid, "orders", "totals") is None


NAME = TransactionName(Scope("p" * 64, "s" * 32, LOG), 12_345_678, 1_234_567_890, 99_999, 999, "01234567")


def shown(xid: Xid, format_id: int = 0x0CEBA2D) -> str:
    return f"X'{xid.gtrid.encode().hex()}',X'{xid.bqual.encode().hex()}',{format_id}"


def test_the_longest_names_fit_into_an_xa_identifier_and_come_back() -> None:
    xid = Xid.of(NAME)
    assert (len(xid.gtrid) <= 64, len(xid.bqual) <= 64) == (True, True)
    assert read_xid(shown(xid), *NAME.scope[:2]) == NAME


@pytest.mark.parametrize(
    "other", [("p" * 63, "s" * 32), ("P" * 64, "s" * 32), ("p" * 64, "s" * 31), ("p", "p" * 64 + ":s")]
)
def test_an_identifier_is_ours_only_under_exactly_our_names(other: tuple[str, str]) -> None:
    assert read_xid(shown(Xid.of(NAME)), *other) is None


@pytest.mark.parametrize(
    "text",
    [
        shown(Xid.of(NAME), format_id=1),
        shown(Xid(gtrid_of(*NAME.scope[:2]), "")),
        shown(Xid(gtrid_of(*NAME.scope[:2]), "0123abcd:1:2:3:04:01234567")),
        shown(Xid(gtrid_of(*NAME.scope[:2]) + "x", Xid.of(NAME).bqual)),
        "X'00ff27',X'80',99",
        "X'00f',X'80',99",
        "",
    ],
)
def test_foreign_identifiers_are_not_read(text: str) -> None:
    assert read_xid(text, *NAME.scope[:2]) is None


def test_a_name_whose_numbers_do_not_fit_is_refused_before_it_is_used() -> None:
    with pytest.raises(ValueError, match="64"):
        Xid.of(NAME._replace(epoch=10**40))


# What the ledger proves


def committable(**fields: Any) -> Committable:
    given = {"pipeline": "orders", "sink": "totals", "log": LOG, "generation": 3, "epoch": 7, "transaction": "name"}
    return Committable(**{"kind": "sql-prepared", **given, **fields})


@pytest.mark.parametrize(
    ("facts", "commit", "abort", "state"),
    [
        (LedgerFacts("", {LOG: -1}, frozenset({"name"})), "already committed", "committed", "committed"),
        (LedgerFacts("lags", {LOG: -1}, frozenset({"name"})), "already committed", "committed", "committed"),
        (LedgerFacts("lags", {LOG: -1}, frozenset()), "retry later", "retry later", "no answer"),
        (LedgerFacts("", {}, frozenset()), "unknown", "aborted", "absent"),
        (LedgerFacts("", {"ffff0000": -1}, frozenset()), "unknown", "aborted", "absent"),
        (LedgerFacts("", {LOG: 7}, frozenset()), "unknown", "unknown", "unknown"),
        (LedgerFacts("", {LOG: 6}, frozenset()), "lost", "aborted", "aborted"),
        (LedgerFacts("", {LOG: 6}, frozenset(), {LOG: Progress(3, 8)}), "unknown", "unknown", "unknown"),
        (LedgerFacts("", {LOG: 6}, frozenset(), {LOG: Progress(4, 0)}), "unknown", "unknown", "unknown"),
        (LedgerFacts("", {LOG: 6}, frozenset(), {LOG: Progress(3, 7)}), "lost", "aborted", "aborted"),
        (LedgerFacts("", {LOG: 6}, frozenset(), {LOG: Progress(3, 6)}), "lost", "aborted", "aborted"),
        (LedgerFacts("", {LOG: 6}, frozenset(), {"ffff0000": Progress(9, 9)}), "lost", "aborted", "aborted"),
        (
            LedgerFacts("", {LOG: 6}, frozenset({"name"}), {LOG: Progress(4, 0)}),
            "already committed",
            "committed",
            "committed",
        ),
    ],
)
def test_an_absent_row_proves_something_only_in_the_right_ledger(
    facts: LedgerFacts, commit: str, abort: str, state: str
) -> None:
    assert facts.commit_outcome(committable(), "words").status == CommitStatus(commit)
    assert facts.abort_outcome(committable(), "words").status == AbortStatus(abort)
    assert facts.observe(committable())[0] == Observation(state)


# MariaDB's keys


def test_mariadb_upserts_only_where_no_other_key_can_find_the_row() -> None:
    key, other = frozenset({"id"}), frozenset({"email"})
    assert MariaDb().check_key([key], ["id"]) == ""
    assert "no primary key or unique index" in MariaDb().check_key([other], ["id"])
    assert "email" in MariaDb().check_key([key, other], ["id"])
