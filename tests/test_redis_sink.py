"""What RedisSink decides without a server: settings, keys, forms, and what a server must be like."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.connectors.redis.client import RedisFacts, check_facts, connect
from onceward.connectors.redis.forms import KeyTemplate, WrittenEntry, check_form, hashed_entry_columns, to_entries
from onceward.connectors.redis.sink import RedisSink
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import WriteContext
from onceward.core.errors import ConfigurationError, SchemaError, SinkError
from onceward.sinks import Guarantee
from onceward.sinks.folder_claims import FolderClaims

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "open-sesame@1234"
GOOD = RedisFacts((7, 2), "master", cluster=False, append_only=True, fsync="always", evicts=False, replicas=0)


def make(folder: Path, **settings: Any) -> RedisSink:
    return RedisSink("cache", folder, **{"url": "redis://localhost", "key": "rows", **settings})


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": "http://localhost"}, "redis://, rediss:// or unix://"),
        ({"url": "redis://"}, "name a server"),
        ({"url": "redis://host:port"}, "not a URL"),
        ({"url": f"redis://:{SECRET.replace('@', '%40')}@host", "password": SECRET}, "given twice"),
        ({"form": "set"}, "form 'set'"),
        ({"form": "list", "maxlen": 5}, "for streams"),
        ({"maxlen": 0}, "1 or more"),
        ({"replicas": -1}, "replicas=-1"),
        ({"replicas": 1, "durable": False}, "replicas=1"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("inf")}, "at most a day"),
        ({"url": "redis://localhost/abc"}, "number of a database"),
        ({"url": "redis://a..b/0"}, "empty label"),
        ({"url": f"redis://{'a' * 64}/0"}, "more than 63"),
        ({"url": "redis://localhost/0?foo=1"}, "unknown options; known are"),
        ({"url": "redis://localhost/0?retry="}, "unknown options; known are"),
        ({"key": ""}, "key is empty"),
        ({"key": "a{"}, "key 'a{'"),
        ({"key": "a{}"}, "empty braces"),
        ({"key": "{n:5}"}, "columns in braces"),
        ({"key": "onceward:1:p"}, "reserved for markers"),
    ],
)
def test_wrong_settings_are_refused_and_no_secret_is_repeated(tmp_path: Path, settings: dict[str, Any], says: str):
    with pytest.raises(ConfigurationError, match=says) as caught:
        make(tmp_path, **settings)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"password": SECRET},
        {"url": "redis://me:open-sesame%401234@localhost/3"},
        {"url": "redis://localhost/3?password=open-sesame%401234"},
    ],
)
def test_the_password_is_shown_nowhere_and_survives_pickling(tmp_path: Path, settings: dict[str, Any]):
    sink = make(tmp_path, **settings)
    for text in (repr(sink), repr(sink.settings), sink.settings.shown):
        assert "sesame" not in text
    said = sink.settings.redact("user open-sesame@1234, open-sesame%401234 of b'open-sesame@1234'")
    assert "sesame" not in said
    assert pickle.loads(pickle.dumps(sink)).settings == sink.settings


@pytest.mark.parametrize(
    "url",
    [
        "redis://:7/secretpw@h/0",
        "redis://:7/77@h/0",
        "redis://user:12?34@h",
        "redis://user:12?34@h/0",
        "redis://user:12#34@h/0",
        "redis://:12@34@h/0",
        "redis://:12@34/56@h/0",
        "redis://:pa/ss@h/0",
        "redis://:pa[ss@h/0",
        "redis://:12\n34@h/0",
        "redis://12/34@h/0",
        "rediss://12@h?password=12@34",
        "unix://user:12/34@/run/redis.sock",
    ],
)
def test_a_password_whose_characters_end_it_is_refused_and_no_piece_of_it_repeated(tmp_path: Path, url: str):
    with pytest.raises(ConfigurationError, match="percent-encode") as caught:
        make(tmp_path, url=url)
    for piece in ("secret", "12", "34", "56", "77", "pa/", "pa[", "ss@"):
        assert piece not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "password", "shown"),
    [
        ("redis://me:a%40b%2Fc%3Fd%23e@h:7/3", "a@b/c?d#e", "redis://h:7/3"),
        ("redis://[::1]:7?password=a/b%40", "a/b@", "redis://[::1]:7"),
        ("unix://me:pw@/run/redis.sock?db=3", "pw", "unix:///run/redis.sock"),
        ("redis://h", None, "redis://h"),
    ],
)
def test_a_url_is_read_as_redis_py_reads_it(tmp_path: Path, url: str, password: str | None, shown: str):
    settings = make(tmp_path, url=url).settings
    assert connect(settings).connection_pool.connection_kwargs["password"] == password
    assert settings.shown == shown


@pytest.mark.parametrize(
    "options",
    [
        "socket_timeout=abc",
        "socket_timeout=nan",
        "socket_connect_timeout=-1",
        "db=abc",
        "max_connections=-1",
        "ssl_ca_certs=/ca.pem",
        "ssl_cert_reqs=open-sesame&password=open-sesame",
    ],
)
def test_an_option_of_the_url_that_redis_py_refuses_is_an_error_of_ours(tmp_path: Path, options: str):
    sink = make(tmp_path, url=f"redis://127.0.0.1:1?{options}", timeout=1.0)
    with pytest.raises(ConfigurationError, match=r"option .*of url") as caught:
        sink.validate(pa.schema([("n", pa.int64())]))
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("option", ["ssl_min_version=5", "ssl_cert_reqs=maybe"])
def test_an_option_of_tls_that_is_none_is_an_error_of_ours(tmp_path: Path, option: str):
    with pytest.raises(ConfigurationError, match="option of url"):
        connect(make(tmp_path, url=f"rediss://127.0.0.1:1?{option}").settings)


def test_options_of_the_url_cannot_change_how_answers_are_read(tmp_path: Path):
    url = "redis://127.0.0.1:1?decode_responses=true&protocol=3&retry_on_timeout=true&socket_timeout=3"
    used = connect(make(tmp_path, url=url).settings).connection_pool.connection_kwargs
    assert (used["decode_responses"], used["protocol"], used["socket_timeout"]) == (False, 2, 3.0)
    assert used["retry"].get_retries() == 0


def test_what_was_written_under_another_key_is_an_error_and_no_traceback():
    with pytest.raises(SinkError, match="no column 'm'"):
        to_entries("s", "hash", KeyTemplate("{m}"), rows(n=[1]))


def test_a_server_that_is_not_there_hides_no_segment(tmp_path: Path):
    scope = Scope("p", "cache", "0123abcd")
    sink = make(tmp_path, url="redis://127.0.0.1:1", connect_timeout=1.0)
    FolderClaims(tmp_path).claim(scope)
    segment = sink.begin(WriteContext(pipeline="p", sink="cache", log=scope.log, generation=1, epoch=1, subtask=0))
    sink.write(segment, rows(n=[1]))
    named = sink.pre_commit(segment).transaction
    assert [committable.transaction for committable in sink.lingering(scope)] == [named]


def test_the_guarantee_is_that_of_what_the_server_keeps(tmp_path: Path):
    assert make(tmp_path).guarantee is Guarantee.EXACTLY_ONCE
    assert make(tmp_path, durable=False).guarantee is Guarantee.AT_MOST_ONCE


def test_complete_mode_is_for_hashes(tmp_path: Path):
    make(tmp_path, form="hash", key="{n}").validate_complete_mode()
    for form in ("stream", "list"):
        with pytest.raises(ConfigurationError, match="use form 'hash'"):
            make(tmp_path, form=form).validate_complete_mode()


def test_options_of_a_format_are_the_arguments(tmp_path: Path):
    options = {"url": "redis://h", "key": "t:{n}", "FORM": "hash", "folder": str(tmp_path), "rowspersend": "9"}
    sink = RedisSink.from_options({**options, "durable": "false", "password": SECRET})
    assert (sink.name, sink.form, sink.key.text, sink.rows_per_send) == ("redis", "hash", "t:{n}", 9)
    assert (sink.durable, sink.settings.password) == (False, SECRET)
    with pytest.raises(ConfigurationError, match=r"unknown options .*'ttl'"):
        RedisSink.from_options({**options, "ttl": "1"})
    with pytest.raises(ConfigurationError, match=r"needs the options \['key'\]"):
        RedisSink.from_options({"url": "redis://h", "folder": "/d"})


def test_values_are_text_and_nulls_have_no_field():
    batch = rows(
        n=[1],
        ratio=[0.1],
        yes=[True],
        text=["grün"],
        raw=[b"\x00\xff"],
        day=[date(2026, 1, 2)],
        at=[datetime(2026, 1, 2, 3, tzinfo=UTC)],
        money=[Decimal("1.10")],
        small=pa.array([Decimal("0E-8")], pa.decimal128(18, 8)),
        clock=pa.array([37_230_000_000_000], pa.time64("ns")),
        some=[[1, None]],
        none=pa.array([None], pa.string()),
    )
    fields = {
        b"n": b"1",
        b"ratio": b"0.1",
        b"yes": b"true",
        b"text": "grün".encode(),
        b"raw": b"\x00\xff",
        b"day": b"2026-01-02",
        b"at": b"2026-01-02T03:00:00+00:00",
        b"money": b"1.10",
        b"small": b"0.00000000",
        b"clock": b"10:20:30",
        b"some": b"[1,null]",
    }
    words = [word for pair in fields.items() for word in pair]
    key = KeyTemplate("{{x}}:{text}:{n}")
    assert to_entries("s", "hash", key, batch) == [WrittenEntry("{x}:grün:1".encode(), words, [b"none"])]
    assert to_entries("s", "stream", key, batch)[0].words == [b"*", *words]
    assert to_entries("s", "stream", key, batch, 7)[0].words == [b"MAXLEN", b"~", b"7", b"*", *words]
    assert to_entries("s", "hash", KeyTemplate("k:{small}"), batch)[0].key == b"k:0.00000000"
    assert to_entries("s", "list", KeyTemplate("l"), rows(n=[1], m=["a"])) == [
        WrittenEntry(b"l", [b'{"n":1,"m":"a"}'], [])
    ]


@pytest.mark.parametrize(
    ("form", "key", "batch", "says"),
    [
        ("hash", "k:{n}", rows(n=pa.array([1, None])), "column 'n' of the key is null"),
        ("hash", "{s}", rows(s=["onceward:1:p:cache"]), "reserved for markers"),
        ("stream", "k", rows(n=pa.array([None], pa.int64())), "all its columns are null"),
        ("list", "k", rows(n=[1], x=[float("nan")]), "column 'x': .*(not JSON compliant|Out of range)"),
        ("stream", "k", rows(n=[float("nan")], x=[[float("nan")]]), "column 'x': .*(not JSON compliant|Out of range)"),
    ],
)
def test_a_row_that_cannot_be_written_is_an_error(form: str, key: str, batch: pa.RecordBatch, says: str):
    with pytest.raises(SinkError, match=says):
        to_entries("s", form, KeyTemplate(key), batch)


@pytest.mark.parametrize(
    ("form", "key", "schema", "says"),
    [
        ("hash", "k", pa.schema([("n", pa.int64())]), "needs a column in its key"),
        ("hash", "{m}", pa.schema([("n", pa.int64())]), "names column 'm'; the columns are"),
        ("hash", "{x}", pa.schema([("x", pa.float64())]), "cannot be part of a key"),
        ("list", "k", pa.schema([("x", pa.timestamp("ns"))]), "column 'x' of type .* is not supported"),
        ("list", "k", pa.schema([]), "no columns"),
        ("list", "k", pa.schema([(str(n), pa.int64()) for n in range(1001)]), "too much for one"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(form: str, key: str, schema: pa.Schema, says: str):
    with pytest.raises((SchemaError, ConfigurationError), match=says):
        check_form("s", form, KeyTemplate(key), schema, 500)


@pytest.mark.parametrize(
    ("fact", "says"),
    [
        ({"cluster": True}, "Redis Cluster"),
        ({"role": "slave"}, "is a replica"),
        ({"longest_request": 1 << 20}, "set client-query-buffer-limit to 67108864 or more"),
        ({"append_only": False}, "appendonly to yes"),
        ({"fsync": "no"}, "appendfsync"),
        ({"evicts": True}, "noeviction"),
        ({"version": (7, 0)}, "WAITAOF"),
    ],
)
def test_a_server_that_may_forget_what_it_acknowledged_is_refused(fact: dict[str, Any], says: str):
    assert check_facts(GOOD, "here", durable=True, replicas=0) == []
    with pytest.raises(ConfigurationError, match=says):
        check_facts(GOOD._replace(**fact), "here", durable=True, replicas=0)


def test_what_is_only_slow_or_asked_for_is_a_warning():
    [slow] = check_facts(GOOD._replace(fsync="everysec"), "here", durable=True, replicas=0)
    assert "up to a second" in slow
    forgetful = GOOD._replace(append_only=False, evicts=True, version=(6, 0))
    assert len(check_facts(forgetful, "here", durable=False, replicas=0)) == 2
    with pytest.raises(ConfigurationError, match="has 0 replicas"):
        check_facts(GOOD, "here", durable=True, replicas=1)


def test_no_rows_have_no_hash():
    assert hashed_entry_columns("stream", KeyTemplate("a"), rows(n=[1]).slice(0, 0)).num_rows == 0
