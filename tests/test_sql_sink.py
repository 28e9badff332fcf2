"""SqlAlchemySink without a server: settings, secrets, names of tables and transactions, and what the ledger proves."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import sqlalchemy as sa

from onceward.connectors.database.ledger import Facts
from onceward.connectors.database.mariadb import MariaDb, Xid, gtrid_of, read_xid
from onceward.connectors.database.sqlalchemy_sink import SqlAlchemySink
from onceward.connectors.database.target import TableName, Url
from onceward.core.errors import ConfigurationError, RetryableSinkError
from onceward.core.names import Scope, TransactionName
from onceward.core.transaction import AbortStatus, CommitStatus, Committable, Observation, WriteContext

POSTGRES = "postgresql+psycopg://writer:ge%20heim%26%25@127.0.0.1:1/shop?connect_timeout=1"
MARIADB = "mariadb+pymysql://writer:ge%20heim%26%25@127.0.0.1:1/shop"
SQLITE = "sqlite:////var/lib/shop.db"
LOG = "0123abcd"
CONTEXT = WriteContext(pipeline="p", sink="totals", log=LOG, writer=1, epoch=1, subtask=0)


def sink(**settings: Any) -> SqlAlchemySink:
    return SqlAlchemySink("totals", **{"url": POSTGRES, "table": "public.totals", **settings})


# Secrets


@pytest.mark.parametrize("url", [POSTGRES, MARIADB, "postgresql://writer@h/shop?password=geheimnis"])
def test_a_password_is_never_shown(url: str) -> None:
    made = sink(url=url)
    for text in (repr(made), str(made.target), repr(made.target.url), str(made.target.url), f"{made.__dict__}"):
        assert "heim" not in text
        assert "shop" in text or "totals" in text


@pytest.mark.parametrize("url", [POSTGRES, MARIADB, SQLITE])
def test_the_sink_survives_pickling_password_included(url: str) -> None:
    copied = pickle.loads(pickle.dumps(sink(url=url)))
    assert copied.target == sink(url=url).target
    assert copied.target.url.parsed.password == sa.make_url(url).password


def test_a_url_made_of_parts_may_have_any_sign_in_any_of_them() -> None:
    given = sa.URL.create("postgresql", username="wri@ter", password="ge@h/ei?m", host="h", database="sh@op")
    url = Url(given)
    assert "ge@" not in str(url)
    assert pickle.loads(pickle.dumps(url)) == url
    assert url.parsed.database == "sh@op"


def test_a_password_is_cut_out_of_messages_in_every_form() -> None:
    for form in ("ge heim&%", "ge%20heim%26%25"):
        assert Url(POSTGRES).redact(f"cannot use {form} here") == "cannot use *** here"


@pytest.mark.parametrize("text", ["geheim", "postgresql//u:geheim@h", "postgresql+psycopg://u:p@h:geheim/db", ""])
def test_what_is_no_url_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError, match="url is not a database URL") as caught:
        sink(url=text)
    assert "heim" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://writer:ge@heim@h/shop",
        "mariadb://writer:ge@heim@h:3306/shop",
        "postgresql://writer:ge@h/heim@h/shop",
        "postgresql://writer:ge@h?heim@h/shop",
        "postgresql://wri/ter:geheim@h/shop",
        "postgresql://writer@h/shop?password=ge@heim",
    ],
)
def test_a_url_whose_password_cannot_be_told_from_the_rest_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError, match="percent-encode") as caught:
        sink(url=url)
    for part in ("heim", "ge@", "writer", "shop"):
        assert part not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("password", ["ge/heim", "ge?heim", "ge:heim", "ge#heim"])
def test_signs_that_a_password_may_hold_as_they_are_hide_with_it(password: str) -> None:
    url = Url(f"postgresql://writer:{password}@h/shop")
    assert (url.parsed.password, str(url)) == (password, "postgresql+psycopg://writer:***@h/shop")


@pytest.mark.parametrize("url", [POSTGRES, MARIADB])
def test_a_server_that_is_not_there_may_be_there_later(url: str) -> None:
    with pytest.raises(RetryableSinkError, match=r"127\.0\.0\.1") as caught:
        sink(url=url, commit="prepared").begin(CONTEXT)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.retryable, again.pipeline) == (str(caught.value), True, "p")
    assert "heim" not in str(again)


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
    assert str(Url(given)) == str(Url(used)) == used
    assert Url(sa.make_url(given)) == Url(used)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("oracle://h/d", "database 'oracle'"),
        ("postgresql+asyncpg://h/d", "driver 'asyncpg'"),
        ("mysql+mysqldb://h/d", "driver 'mysqldb'"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///file:x?mode=memory&uri=true", "in memory"),
    ],
)
def test_other_databases_and_drivers_are_refused_by_name(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        sink(url=url)


@pytest.mark.parametrize(
    ("settings", "mode", "path"),
    [
        ({}, "insert", None),
        ({"mode": "insert"}, "insert", None),
        ({"key": ["id"]}, "upsert", "staging"),
        ({"key": "id", "mode": "upsert"}, "upsert", "staging"),
        ({"commit": "staging"}, "insert", "staging"),
        ({"commit": "prepared"}, "insert", "prepared"),
        ({"url": MARIADB}, "insert", None),
        ({"url": SQLITE}, "insert", "staging"),
        ({"url": SQLITE, "key": "id"}, "upsert", "staging"),
    ],
)
def test_mode_and_commit_say_what_is_written_and_how_it_waits(settings: dict[str, Any], mode: str, path: str) -> None:
    made = sink(**settings)
    assert (made.mode, made.commit_path) == (mode, path)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"mode": "replace"}, "mode 'replace' is unknown"),
        ({"mode": "upsert"}, "needs key"),
        ({"mode": "insert", "key": ["id"]}, "takes no key"),
        ({"key": ["id", "id"]}, "repeated"),
        ({"commit": "later"}, "commit 'later' is unknown"),
        ({"key": ["id"], "commit": "prepared"}, "upsert cannot wait as a prepared transaction"),
        ({"url": SQLITE, "commit": "prepared"}, "SQLite has no prepared transactions"),
        ({"lock_timeout": 0}, "lock_timeout must be above 0"),
        ({"answer_within": -1}, "answer_within must be above 0"),
        ({"ledger_epochs": 0}, "ledger_epochs must be above 0"),
        ({"table": "a.b.c"}, "not a table's name"),
        ({"table": ""}, "not a table's name"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        sink(**settings)


def test_options_of_spark_are_read_in_any_case() -> None:
    made = SqlAlchemySink.from_options(
        {"URL": SQLITE, "dbTable": "t", "KEY": "a, b", "createTable": "TRUE", "locktimeout": "2.5", "name": "mine"}
    )
    assert (made.name, made.target.key, made.target.create_table) == ("mine", ("a", "b"), True)
    assert (str(made.target.table), made.target.lock_timeout) == ("t", 2.5)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dbtable": "t"}, r"needs the options \['url'\]"),
        ({"url": SQLITE}, r"needs the options \['dbtable'\]"),
        ({"url": SQLITE, "dbtable": "t", "tabel": "x"}, r"unknown options \['tabel'\]"),
        ({"url": SQLITE, "dbtable": "t", "createtable": "perhaps"}, "option createTable is not true or false"),
    ],
)
def test_options_that_cannot_be_read_are_named(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        SqlAlchemySink.from_options(options)


def test_complete_mode_needs_an_upsert() -> None:
    sink(key="id").validate_complete_mode()
    with pytest.raises(ConfigurationError, match="insert every row again"):
        sink().validate_complete_mode()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("t", (None, "t")),
        ("S.T", ("S", "T")),
        (' "My Schema" . `a"b` ', ("My Schema", 'a"b')),
        ('"a""b"', (None, 'a"b')),
    ],
)
def test_a_tables_name_means_itself(text: str, parts: tuple[str | None, str]) -> None:
    assert TableName.parse(text) == parts
    assert TableName.parse(str(TableName.parse(text))) == parts


# Names of transactions in XA


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
    given = {"pipeline": "orders", "sink": "totals", "log": LOG, "writer": 3, "epoch": 7, "transaction": "name"}
    return Committable(**{"kind": "sql-prepared", **given, **fields})


@pytest.mark.parametrize(
    ("facts", "commit", "abort", "state"),
    [
        (Facts("", {LOG: -1}, frozenset({"name"})), "already committed", "committed", "committed"),
        (Facts("lags", {LOG: -1}, frozenset({"name"})), "already committed", "committed", "committed"),
        (Facts("lags", {LOG: -1}, frozenset()), "retry later", "retry later", "no answer"),
        (Facts("", {}, frozenset()), "unknown", "aborted", "absent"),
        (Facts("", {"ffff0000": -1}, frozenset()), "unknown", "aborted", "absent"),
        (Facts("", {LOG: 7}, frozenset()), "unknown", "unknown", "unknown"),
        (Facts("", {LOG: 6}, frozenset()), "lost", "aborted", "aborted"),
    ],
)
def test_an_absent_row_proves_something_only_in_the_right_ledger(
    facts: Facts, commit: str, abort: str, state: str
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
