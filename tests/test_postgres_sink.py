"""PostgresSink without a server: configuration, secrets, names and choices."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from onceward.connectors.database.checks import choose_path
from onceward.connectors.database.dialect import ServerFacts
from onceward.connectors.database.postgres.dialect import PostgreSql
from onceward.connectors.database.postgres_sink import PostgresSink
from onceward.connectors.database.target import CommitPath, TableName, Url, own_name
from onceward.core.errors import ConfigurationError, RetryableSinkError
from onceward.core.transaction import WriteContext

PASSWORD = "ge heim&%"
DSN = f"host=127.0.0.1 port=1 user=writer dbname=shop password='{PASSWORD}' connect_timeout=1"
URI = "postgresql://writer:ge%20heim%26%25@127.0.0.1:1/shop?connect_timeout=1"


def sink(**settings: Any) -> PostgresSink:
    return PostgresSink("totals", **{"dsn": DSN, "table": "public.totals", **settings})


# Secrets


@pytest.mark.parametrize("dsn", [DSN, URI])
def test_a_password_is_never_shown(dsn: str) -> None:
    made = sink(dsn=dsn)
    for text in (repr(made), str(made.target), repr(made.target.url), str(made.target.url), f"{made.__dict__}"):
        assert "heim" not in text
        assert "shop" in text or "totals" in text


@pytest.mark.parametrize("dsn", [DSN, URI])
def test_a_password_survives_pickling_of_the_sink(dsn: str) -> None:
    copied = pickle.loads(pickle.dumps(sink(dsn=dsn)))
    assert copied.target == sink(dsn=dsn).target
    assert copied.target.url.libpq()["password"] == PASSWORD


def test_a_password_is_cut_out_of_messages() -> None:
    for form in (PASSWORD, "ge%20heim%26%25"):
        assert Url.from_dsn(DSN).redact(f"cannot use {form} here") == "cannot use *** here"


def test_a_short_password_does_not_show_by_the_holes_it_leaves() -> None:
    dsn = Url.from_dsn("postgresql://u:in@localhost/shop")
    assert dsn.redact("in doubt: connecting as in") == "*** doubt: connecting as ***"
    long = Url.from_dsn("postgresql://u:secret7@localhost/shop")
    assert long.redact("bad uri u:secret7x") == "bad uri u:***x"


@pytest.mark.parametrize("text", ["host=x password=geheim foo", "postgresql://u:ge heim@h/db", "geheim"])
def test_a_broken_connection_string_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sink(dsn=text)
    assert "heim" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_server_that_is_not_there_may_be_there_later() -> None:
    context = WriteContext(pipeline="p", sink="totals", log="0123abcd", writer=1, epoch=1, subtask=0)
    with pytest.raises(RetryableSinkError, match=r"cannot begin.*127\.0\.0\.1") as caught:
        sink(commit="prepared").begin(context)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.retryable) == (str(caught.value), True)
    assert "heim" not in str(again)


def test_the_users_connection_settings_win_over_the_defaults() -> None:
    def parameters(dsn: str) -> dict[str, Any]:
        return PostgreSql().engine_arguments(sink(dsn=dsn).target.access)["creator"].keywords

    several = parameters("host=a,b port=1,2 connect_timeout=3")
    assert (several["connect_timeout"], several["target_session_attrs"]) == ("3", "primary")
    assert (several["host"], several["port"]) == ("a,b", "1,2")
    assert "target_session_attrs" not in parameters("host=a")


# Settings


@pytest.mark.parametrize(
    ("settings", "mode", "path"),
    [
        ({}, "insert", None),
        ({"mode": "insert"}, "insert", None),
        ({"key": ["id"]}, "upsert", "staging"),
        ({"key": "id", "mode": "upsert"}, "upsert", "staging"),
        ({"mode": "staging"}, "insert", "staging"),
        ({"mode": "staging", "key": ["id"]}, "upsert", "staging"),
        ({"mode": "prepared"}, "insert", "prepared"),
        ({"commit": "staging"}, "insert", "staging"),
        ({"commit": "prepared"}, "insert", "prepared"),
        ({"mode": "staging", "commit": "staging"}, "insert", "staging"),
    ],
)
def test_mode_and_commit_say_what_is_written_and_how_it_waits(
    settings: dict[str, Any], mode: str, path: str | None
) -> None:
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
        ({"mode": "staging", "commit": "prepared"}, "contradicts"),
        ({"key": ["id"], "commit": "prepared"}, "upsert cannot wait as a prepared transaction"),
        ({"lock_timeout": 0}, "must be above 0"),
        ({"ledger_epochs": -1}, "must be above 0"),
        ({"table": "a.b.c"}, "not a table's name"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], why: str) -> None:
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


def test_options_of_spark_make_the_same_sink() -> None:
    options = {
        "dsn": DSN,
        "dbTable": "public.totals",
        "name": "totals",
        "key": "id, day",
        "createTable": "True",
        "lock_timeout": "2.5",
        "ledgerSchema": "Books",
    }
    made = PostgresSink.from_options(options)
    same = sink(key=["id", "day"], create_table=True, lock_timeout=2.5, ledger_schema="Books")
    assert (made.target, made.name, made.mode) == (same.target, "totals", "upsert")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dsn": DSN}, "needs the options .*dbtable"),
        ({"dbtable": "t"}, "needs the options .*dsn"),
        ({"dsn": DSN, "dbtable": "t", "batchsize": "5"}, "unknown options.*batchsize"),
        ({"dsn": DSN, "dbtable": "t", "createTable": "perhaps"}, "createTable is not true or false"),
    ],
)
def test_options_that_cannot_be_read_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        PostgresSink.from_options(options)
    assert "heim" not in str(caught.value)


# Names


@pytest.mark.parametrize(
    ("text", "schema", "table"),
    [
        ("t", None, "t"),
        ("Totals", None, "totals"),
        (" public . totals ", "public", "totals"),
        ('"My Schema"."T"', "My Schema", "T"),
        ('"a.b"."say ""hi"""', "a.b", 'say "hi"'),
        ("_x$1", None, "_x$1"),
        ("straße", None, "straße"),
    ],
)
def test_table_names_are_read_as_in_sql(text: str, schema: str | None, table: str) -> None:
    parsed = TableName.parse(text, fold=True)
    assert parsed == (schema, table)
    assert TableName.parse(str(parsed), fold=True) == TableName.parse(parsed.quoted, fold=True) == parsed


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
