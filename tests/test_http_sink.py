"""HttpSink against a real server on a real socket. SCENARIOS 19 to 21 and 62 to 66."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow as pa
import pytest

from onceward.connectors.http import client
from onceward.connectors.http.client import HttpClient, HttpSettings, error_class_of, seconds_to_wait
from onceward.connectors.http.sink import HttpSink
from onceward.core.contract.transaction import CommitStatus, Committable
from onceward.core.errors import ConfigurationError, RetryableSinkError, SchemaError, SinkError
from onceward.core.kit.crash_points import Step
from onceward.core.kit.rows import json_rows
from onceward.sinks import Guarantee
from onceward.testing.conformance import SinkConformance, SinkUnderTest
from onceward.testing.proxy import Proxy

from .http_kit import DROP, LOSE_ANSWER, TAKE, Inbox, Plan
from .sink_kit import commit_in_child, delete_files_of, prepared

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "open-sesame-1234"


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    with inbox.up():
        yield inbox


@pytest.fixture
def hook(tmp_path: Path, inbox: Inbox) -> HttpSink:
    return make(tmp_path, inbox)


def make(folder: Path, inbox: Inbox, **settings: Any) -> HttpSink:
    given = {"rows_per_send": 2, "server_honors_keys": inbox.honors_keys, "url": inbox.url, **settings}
    return HttpSink("hook", folder / "log", **given)


def refusal(status: int, **headers: str) -> Plan:
    return Plan(take=False, status=status, headers=tuple(headers.items()))


class TestConformance(SinkConformance):
    """The conformance suite."""

    @pytest.fixture
    def sink_under_test(self, tmp_path: Path, inbox: Inbox) -> Iterator[SinkUnderTest]:
        proxy = Proxy("127.0.0.1", inbox.port)
        url = inbox.url.replace(f":{inbox.port}", f":{proxy.port}")
        yield SinkUnderTest(
            make=lambda: make(tmp_path, inbox, rows_per_send=3, url=url),
            proxy=proxy,
            read=lambda: inbox.numbers,
            read_rows=lambda: inbox.rows,
            columns=pa.schema({"text": pa.string(), "whole": pa.int64(), "list": pa.list_(pa.string())}),
            ordered=True,
            kill=True,
            refused=lambda numbers: pa.RecordBatch.from_pydict({"n": [float("nan")] * len(numbers)}),
            misfit=pa.schema([("n", pa.int64()), ("text", pa.month_day_nano_interval())]),
            take_away=inbox.take_away,
            delete_prepared=lambda committable: delete_files_of(tmp_path, committable),
        )
        proxy.close()


class TestConformanceWithoutKeys(SinkConformance):
    """And with a server that knows no keys: at least once."""

    @pytest.fixture
    def sink_under_test(self, tmp_path: Path, inbox: Inbox) -> SinkUnderTest:
        inbox.honors_keys = False
        return SinkUnderTest(
            make=lambda: make(tmp_path, inbox, rows_per_send=3),
            read=lambda: inbox.numbers,
            take_away=inbox.take_away,
            delete_prepared=lambda committable: delete_files_of(tmp_path, committable),
        )


# What is sent


def test_rows_come_in_order_each_delivery_under_a_key_of_its_own(inbox: Inbox, hook: HttpSink):
    committable = prepared(hook, range(5), range(5, 8))
    assert inbox.posts == []
    assert hook.commit(committable).status is CommitStatus.COMMITTED
    assert [[row["n"] for row in request.rows] for request in inbox.posts] == [[0, 1], [2, 3], [4], [5, 6], [7]]
    assert inbox.posts[1].key == f'"{committable.transaction}:2:2"'
    assert len({request.key for request in inbox.posts}) == 5
    assert {request.headers["content-type"] for request in inbox.posts} == {"application/json"}
    assert len({request.client for request in inbox.posts}) == 1, "one connection for all of them"
    assert hook.commit(committable).status is CommitStatus.ALREADY_COMMITTED


def test_json_lines_hold_an_object_a_line(tmp_path: Path, inbox: Inbox):
    sink = make(tmp_path, inbox, body="jsonl")
    sink.commit(prepared(sink, range(2)))
    assert inbox.posts[0].body == b'{"n":0}\n{"n":1}\n'
    assert inbox.numbers == [0, 1]


@pytest.mark.parametrize(("form", "shape"), [("plain", r"onceward:1:p:hook:"), ("uuid", r"^[0-9a-f-]{36}$")])
def test_keys_come_as_the_server_wants_them(tmp_path: Path, inbox: Inbox, form: str, shape: str):
    import re

    sink = make(tmp_path, inbox, key_format=form, key_header="Idempotency-Key")
    inbox.plans = [LOSE_ANSWER]
    committable = prepared(sink, range(4))
    assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    keys = [request.key for request in inbox.posts]
    assert re.search(shape, keys[0])
    assert keys[0] == keys[1] != keys[2]
    assert inbox.numbers == [0, 1, 2, 3]


def test_every_type_has_one_form_in_json(inbox: Inbox, hook: HttpSink):
    columns = {
        "big": pa.array([2**63 - 1]),
        "ratio": pa.array([0.1]),
        "money": pa.array([Decimal("12345678901234567890.10")]),
        "raw": pa.array([b"\x00\xff"]),
        "day": pa.array([date(2026, 1, 2)]),
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        "text": pa.array(["grün\n"]).dictionary_encode(),
        "none": pa.array([None], pa.int32()),
        "list": pa.array([[{"a": 1, "b": b"x"}]]),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    hook.validate(batch.schema)
    hook.commit(prepared(hook, batch))
    [row] = inbox.posts[0].rows
    assert row == {
        "big": 2**63 - 1,
        "ratio": 0.1,
        "money": "12345678901234567890.10",
        "raw": "AP8=",
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05.000006+00:00",
        "text": "grün\n",
        "none": None,
        "list": [{"a": 1, "b": "eA=="}],
        "map": [["k", 1]],
    }


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, float("nan")]),
        pa.array([[float("inf")]]),
        pa.array([{"a": float("nan")}]),
        pa.array([3_000_000], pa.date32()),
    ],
    ids=["nan", "infinity in a list", "nan in a struct", "a day after the year 9999"],
)
def test_a_value_that_json_cannot_hold_is_refused_before_the_decision(hook: HttpSink, column: pa.Array):
    with pytest.raises(SinkError, match="cannot be written as JSON: column 'x': "):
        prepared(hook, pa.RecordBatch.from_arrays([column], ["x"]))


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns"), pa.large_list(pa.time64("ns")), pa.float16(), pa.month_day_nano_interval()], ids=str
)
def test_a_column_that_json_cannot_hold_is_refused_by_name(hook: HttpSink, kind: pa.DataType):
    schema = pa.schema([("n", pa.int64()), ("odd_one", kind)])
    with pytest.raises(SchemaError, match=r"column 'odd_one' of type .* is not supported"):
        hook.validate(schema)
    with pytest.raises(SchemaError, match="more than once"):
        hook.validate(pa.schema([("n", pa.int64()), ("n", pa.int64())]))


def test_times_of_day_and_decimals_are_text_with_all_their_digits():
    """Spark sends times of day in nanoseconds."""
    times = pa.array([37_230_250_000_000], pa.time64("ns"))
    decimals = pa.array([Decimal("1E-18")], pa.decimal128(38, 18))
    by_name = pa.array([[("x", 10**9)]], pa.map_(pa.string(), pa.int64())).cast(pa.map_(pa.string(), times.type))
    assert json_rows("hook", pa.record_batch({"at": times, "d": decimals, "m": by_name})) == [
        '{"at":"10:20:30.250000","d":"0.000000000000000001","m":[["x","00:00:01"]]}'
    ]
    with pytest.raises(SinkError, match=r"column 'at' .*fraction of a microsecond"):
        json_rows("hook", pa.record_batch({"at": pa.array([1], pa.time64("ns"))}))


# What the server answers


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_64_what_may_pass_is_tried_again_and_nothing_behind_is_sent_before(inbox: Inbox, hook: HttpSink, status: int):
    committables = [prepared(hook, range(4 * n, 4 * n + 4), epoch=n) for n in range(3)]
    hook.ledger().claim(committables[0].read_name().scope)
    inbox.plans = [TAKE, TAKE, TAKE, refusal(status)]
    outcomes = hook.commit_many(committables)
    assert [o.status for o in outcomes] == [CommitStatus.COMMITTED] + [CommitStatus.RETRY_LATER] * 2
    assert f"answers {status}" in outcomes[1].detail
    assert inbox.numbers == [0, 1, 2, 3, 4, 5]
    assert len(inbox.posts) == 4
    assert all(outcome.settled for outcome in hook.commit_many(committables))
    assert inbox.numbers == list(range(12))
    assert inbox.posts[3].key == inbox.posts[4].key


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 410, 413, 422])
def test_64_what_will_not_pass_is_an_error_and_nothing_behind_is_sent(inbox: Inbox, hook: HttpSink, status: int):
    committables = [prepared(hook, range(4 * n, 4 * n + 4), epoch=n) for n in range(2)]
    hook.ledger().claim(committables[0].read_name().scope)
    inbox.plans = [TAKE, refusal(status, Location="/elsewhere")]
    with pytest.raises(SinkError, match=rf"answers {status} .*No later rows were sent") as caught:
        hook.commit_many(committables)
    assert not isinstance(caught.value, RetryableSinkError)
    assert caught.value.transaction == inbox.posts[1].key.strip('"')
    assert inbox.numbers == [0, 1]
    assert len(inbox.posts) == 2
    assert all(outcome.settled for outcome in hook.commit_many(committables)), "once it is mended"
    assert inbox.numbers == list(range(8))


def test_statuses_of_what_passes_can_be_added(tmp_path: Path, inbox: Inbox):
    sink = make(tmp_path, inbox, retry_statuses=[404])
    inbox.plans = [refusal(404)]
    committable = prepared(sink, range(2))
    assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert sink.commit(committable).status is CommitStatus.COMMITTED


def test_the_servers_words_are_in_the_error(inbox: Inbox, hook: HttpSink):
    inbox.plans = [Plan(take=False, status=422, body=b'{"title":\n "Idempotency-Key is already used"}')]
    with pytest.raises(
        SinkError, match=r'answers 422 to a delivery \(\{"title": "Idempotency-Key is already used"\}\)'
    ):
        hook.commit(prepared(hook, range(2)))


def test_retry_after_is_obeyed_but_not_for_longer_than_allowed(tmp_path: Path, inbox: Inbox):
    patient, hasty = make(tmp_path, inbox), make(tmp_path, inbox, longest_wait=0.0, timeout=29.0)
    for sink, least, most in ((patient, 0.9, 20.0), (hasty, 0.0, 0.9)):
        inbox.plans = [refusal(429, **{"Retry-After": "1"})]
        committable = prepared(sink, range(2))
        started = time.monotonic()
        outcome = sink.commit(committable)
        assert outcome.status is CommitStatus.RETRY_LATER
        assert "wants to be asked again in 1 s" in outcome.detail
        assert sink.commit(committable).status is CommitStatus.COMMITTED
        assert least <= time.monotonic() - started < most


def test_a_server_that_takes_rows_again_is_not_waited_for_any_longer(
    tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
):
    """Each delivery of the hour that it had asked for would wait for longest_wait."""
    slept: list[float] = []
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept.append))
    sink = make(tmp_path, inbox, longest_wait=5.0)
    committable = prepared(sink, range(6))
    inbox.plans = [refusal(503, **{"Retry-After": "3600"})]
    assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert slept == [5.0]


def test_retry_after_is_a_number_of_seconds_or_a_date():
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert seconds_to_wait("120") == 120
    assert seconds_to_wait(format_datetime(now + timedelta(seconds=90), usegmt=True), now) == 90
    assert seconds_to_wait(format_datetime(now - timedelta(seconds=90), usegmt=True), now) == 0
    assert [seconds_to_wait(text) for text in (None, "", "soon", "-1")] == [None] * 4


@pytest.mark.parametrize(
    "text",
    [
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999",
        "Mon, 01 Jan 2024 00:00:00 +999999999999",
        "Thu, 01 Jan 0001 00:00:00 +2300",
        "Fri, 31 Dec 9999 23:59:59 -0100",
        "1" * 5000,
    ],
)
def test_a_server_that_answers_later_with_an_impossible_time_is_asked_again(tmp_path: Path, inbox: Inbox, text: str):
    sink = make(tmp_path, inbox, longest_wait=0.0)
    committable = prepared(sink, range(2))
    inbox.plans = [refusal(503, **{"Retry-After": text})]
    assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert sink.commit(committable).status is CommitStatus.COMMITTED


def test_each_status_has_one_verdict():
    verdicts = {status: error_class_of(status) for status in range(100, 600)}
    assert {s for s, v in verdicts.items() if v is None} == set(range(200, 300)) - {206, 207}
    assert {s for s, v in verdicts.items() if v is RetryableSinkError} == {408, 409, 425, 429, *range(500, 600)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"key_format": "uuid"}),
        ({"key_format": "uuid"}, {"key_format": "plain"}),
        ({}, {"body": "jsonl"}),
        ({"body": "jsonl"}, {}),
        ({}, {"key_header": "X-Key"}),
        ({}, {"key_header": "X-Key", "headers": {"idempotency-key": "mine"}}),
    ],
)
def test_65_a_delivery_is_the_same_in_every_try_though_the_settings_were_changed(
    tmp_path: Path, inbox: Inbox, before: dict[str, Any], after: dict[str, Any]
):
    sink, changed = make(tmp_path, inbox, **before), make(tmp_path, inbox, **after)
    inbox.plans = [TAKE, LOSE_ANSWER]
    committable = Committable.from_json(prepared(sink, range(6)).to_json())
    assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert changed.commit(committable).status is CommitStatus.COMMITTED
    assert inbox.numbers == list(range(6))
    first, again = inbox.posts[1:3]
    assert (first.key, first.body, first.headers["content-type"]) == (
        again.key,
        again.body,
        again.headers["content-type"],
    )


# What the network and the server lose


@pytest.mark.parametrize("honors", [True, False])
def test_20_a_lost_answer_is_repeated_and_a_server_with_keys_takes_it_once(tmp_path: Path, honors: bool):
    inbox = Inbox(honors_keys=honors)
    with inbox.up():
        sink = make(tmp_path, inbox)
        inbox.plans = [TAKE, LOSE_ANSWER]
        committable = prepared(sink, range(6))
        outcome = sink.commit(committable)
        assert outcome.status is CommitStatus.RETRY_LATER
        assert "no answer from http://127.0.0.1" in outcome.detail
        assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert inbox.numbers == ([0, 1, 2, 3, 4, 5] if honors else [0, 1, 2, 3, 2, 3, 4, 5])
    assert inbox.posts[1].key == inbox.posts[2].key
    assert inbox.posts[1].body == inbox.posts[2].body, "servers compare payloads"
    assert sink.guarantee is (Guarantee.EXACTLY_ONCE if honors else Guarantee.AT_LEAST_ONCE)


def test_by_default_it_is_at_least_once(tmp_path: Path):
    assert HttpSink("hook", tmp_path, url="http://localhost/").guarantee is Guarantee.AT_LEAST_ONCE


def test_19_a_server_that_dies_before_it_takes_a_delivery_gets_it_again(inbox: Inbox, hook: HttpSink):
    inbox.plans = [TAKE, DROP, DROP]
    committable = prepared(hook, range(6))
    statuses = [hook.commit(committable).status for _ in range(3)]
    assert statuses == [CommitStatus.RETRY_LATER, CommitStatus.RETRY_LATER, CommitStatus.COMMITTED]
    assert inbox.numbers == list(range(6))


def test_63_a_server_that_is_down_for_a_while_gets_the_rest_afterwards(tmp_path: Path):
    inbox = Inbox()
    inbox.plans = [TAKE, TAKE, DROP]
    with inbox.up():
        sink = make(tmp_path, inbox)
        committable = prepared(sink, range(10))
        assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    for _ in range(3):
        outcome = sink.commit(committable)
        assert outcome.status is CommitStatus.RETRY_LATER
        assert "ConnectError" in outcome.detail
    assert inbox.numbers == [0, 1, 2, 3]
    with inbox.up():
        assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert inbox.numbers == list(range(10))
    assert len(inbox.posts) == 6


def test_a_server_that_does_not_answer_in_time_is_asked_again(tmp_path: Path, inbox: Inbox):
    sink = make(tmp_path, inbox, timeout=0.2)
    committable = prepared(sink, range(2))
    inbox.hang.clear()
    outcome = sink.commit(committable)
    assert outcome.status is CommitStatus.RETRY_LATER
    assert "ReadTimeout" in outcome.detail
    inbox.hang.set()
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert inbox.numbers == [0, 1]


def test_the_body_of_an_answer_is_not_waited_for_longer_than_the_timeout():
    """An overloaded proxy may send a byte now and then, each in time."""

    def drips() -> Iterator[bytes]:
        for _ in range(500):
            time.sleep(0.02)
            yield b"x"

    client = HttpClient(HttpSettings("http://localhost:1/", timeout=0.2))
    began = time.monotonic()
    answer = client._read(httpx.Response(503, content=drips()))
    assert time.monotonic() - began < 5
    assert (answer.status, set(answer.text)) == (503, {"x"})


# Crashes of our own process


@pytest.mark.parametrize("honors", [True, False])
def test_62_and_65_a_process_killed_between_delivery_and_mark(tmp_path: Path, honors: bool):
    inbox = Inbox(honors_keys=honors)
    with inbox.up():
        sink = make(tmp_path, inbox)
        committable = prepared(sink, range(6))
        assert commit_in_child(sink, committable, f"{Step.SEND_AFTER}:2") == -signal.SIGKILL
        assert inbox.numbers == [0, 1, 2, 3]
        assert commit_in_child(sink, committable, f"{Step.SEND_AFTER}:1") == -signal.SIGKILL
        assert commit_in_child(sink, committable) == 0
    assert inbox.numbers == ([0, 1, 2, 3, 4, 5] if honors else [0, 1, 2, 3, 2, 3, 2, 3, 4, 5])
    again = [request for request in inbox.posts if request.key == inbox.posts[1].key]
    assert len(again) == 3
    assert len({request.body for request in again}) == 1


# Settings


def test_validate_asks_whether_a_server_is_there_and_sends_no_rows(tmp_path: Path, inbox: Inbox):
    schema = pa.schema([("n", pa.int64())])
    make(tmp_path, inbox).validate(schema)
    make(tmp_path, inbox, probe="none").validate(schema)
    assert [request.method for request in inbox.requests] == ["OPTIONS"]
    gone = Inbox()
    with gone.up():
        pass
    with pytest.raises(RetryableSinkError, match=rf"no answer from http://127.0.0.1:{gone.port}/….*ConnectError"):
        make(tmp_path, gone).validate(schema)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": "ftp://host/x"}, "http:// or https://"),
        ({"url": "https:///x"}, "name a host"),
        ({"url": "http://host:port/"}, "not a URL"),
        ({"url": f"http://me:{SECRET}@host/"}, "separately"),
        ({"url": "http://host/#here"}, "fragment"),
        ({"url": "http://host/a b"}, "spaces"),
        ({"url": f"http://a..b/{SECRET}"}, "empty label"),
        ({"url": f"http://{'a' * 64}.com/{SECRET}"}, "more than 63"),
        ({"url": f"http://☃☃.x/{SECRET}"}, "not allowed in host names"),
        ({"url": f"http://xn--/{SECRET}"}, "not allowed in host names"),
        ({"url": f"http://1.2.3.999/{SECRET}"}, "not a valid address"),
        ({"url": f"http://[1::2::3]/{SECRET}"}, "not a valid address|not a URL"),
        ({"url": f"http://host/{SECRET}{'a' * 70000}"}, "too long"),
        ({"body": "xml"}, "body 'xml'"),
        ({"key_format": "md5"}, "key_format"),
        ({"key_header": "X Y"}, "key_header"),
        ({"key_header": "X-Key", "headers": {"x-key": "1"}}, "also given in headers"),
        ({"probe": "POST"}, "probe"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"timeout": float("inf")}, "at most a day"),
        ({"connect_timeout": 1e300}, "at most a day"),
        ({"longest_wait": -1}, "longest_wait"),
        ({"retry_statuses": [200]}, "retry_statuses"),
        ({"headers": {"A:B": "x"}}, "not a valid header name"),
        ({"headers": {"X": f"{SECRET}\r\nY: 1"}}, "header X has a value"),
        ({"headers": {"Content-Type": "text/plain"}}, "set by the sink"),
        ({"username": "me"}, "both or neither"),
        ({"token": SECRET, "username": "me", "password": SECRET}, "give one of"),
        ({"token": SECRET, "headers": {"authorization": SECRET}}, "give one of"),
        ({"client_key": "/key.pem"}, "needs client_cert"),
        ({"rows_per_send": 0}, "rows_per_send"),
    ],
)
def test_wrong_settings_are_refused_and_no_secret_is_repeated(tmp_path: Path, settings: dict[str, Any], says: str):
    with pytest.raises(ConfigurationError, match=says) as caught:
        HttpSink("hook", tmp_path, **{"url": "http://localhost/", **settings})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["http://exämple.invalid/ä", "http://host./", "http://a_b/%zz", "https://[::1]:8/"])
def test_unusual_urls_are_taken(tmp_path: Path, url: str):
    assert HttpSink("hook", tmp_path, url=url).settings.url == url


@pytest.mark.parametrize("proxy", [f"http://{SECRET}:{SECRET}", f"ftp://me:{SECRET}@host", f"http://☃☃.x/{SECRET}"])
def test_a_proxy_that_cannot_be_used_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str
):
    monkeypatch.setenv("ALL_PROXY", proxy)
    sink = HttpSink("hook", tmp_path, url=f"http://example.invalid/{len(proxy)}", probe="none")
    with pytest.raises(ConfigurationError, match="names a proxy") as caught:
        sink.validate(pa.schema([("n", pa.int64())]))
    assert SECRET not in str(caught.value)


def test_a_proxy_that_cannot_be_looked_up_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALL_PROXY", "http://a..b:1")
    sink = HttpSink("hook", tmp_path, url="http://example.invalid/")
    with pytest.raises(SinkError, match=r"cannot send to http://example.invalid/: Unicode(Encode)?Error"):
        sink.validate(pa.schema([("n", pa.int64())]))


@pytest.mark.parametrize(
    ("settings", "header", "value"),
    [
        ({"token": SECRET}, "authorization", f"Bearer {SECRET}"),
        ({"username": "me", "password": SECRET}, "authorization", "Basic bWU6b3Blbi1zZXNhbWUtMTIzNA=="),
        ({"headers": {"X-Api-Key": SECRET}}, "x-api-key", SECRET),
    ],
)
def test_secrets_reach_the_server_and_nobody_else(  # noqa: PLR0917 - fixtures and parameters
    tmp_path: Path,
    inbox: Inbox,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    header: str,
    value: str,
):
    caplog.set_level(logging.DEBUG)
    echo = f"bad: {value} or {SECRET} or api-{SECRET} at /hook/{SECRET}".encode()
    sink = make(tmp_path, inbox, url=f"{inbox.url}/{SECRET}?key=api-{SECRET}", **settings)
    inbox.plans = [Plan(take=False, status=503, body=echo, headers=(("Set-Cookie", "a=b"),)), LOSE_ANSWER]
    inbox.plans += [Plan(take=False, status=400, body=echo)]
    sink.validate(pa.schema([("n", pa.int64())]))
    committable = prepared(sink, range(2))
    said = [repr(sink), repr(sink.settings), str(sink.commit(committable)), str(sink.commit(committable))]
    with pytest.raises(SinkError) as caught:
        sink.commit(committable)
    said += [str(caught.value), repr(caught.value), caplog.text, committable.to_json()]
    assert "HTTP Request: POST http://127.0.0.1" in caplog.text
    for text in said:
        assert SECRET not in text
        assert value not in text
    assert inbox.posts[0].headers[header] == value
    assert inbox.posts[0].path == f"/hook/{SECRET}?key=api-{SECRET}"


def test_a_forked_child_has_a_connection_of_its_own(inbox: Inbox, hook: HttpSink):
    hook.commit(prepared(hook, range(2)))
    second = prepared(hook, range(2, 4), epoch=2)
    child = os.fork()
    if child == 0:
        os._exit(0 if hook.commit(second).settled else 1)
    assert os.waitpid(child, 0)[1] == 0
    hook.commit(prepared(hook, range(4, 6), epoch=3))
    assert inbox.numbers == list(range(6))
    clients = [request.client for request in inbox.posts]
    assert clients[0] == clients[2] != clients[1]


def test_options_of_a_format_are_the_arguments(tmp_path: Path):
    options = {
        "URL": "https://example.org/hook",
        "folder": str(tmp_path),
        "rowspersend": "7",
        "serverHonorsKeys": "True",
        "header.X-Team": "blue",
        "token": SECRET,
        "retrystatuses": "404, 423",
        "timeout": "5",
    }
    sink = HttpSink.from_options(options)
    assert (sink.name, sink.rows_per_send, sink.remembers, sink.settings.timeout) == ("http", 7, True, 5.0)
    assert sink.retry_statuses == {404, 423}
    assert dict(sink.settings.headers) == {"X-Team": "blue", "Authorization": f"Bearer {SECRET}"}
    for wrong, says in (
        ({"ulr": "x"}, "unknown options .'ulr'.: did you mean url\\?.* header\\.\\*"),
        ({"timeout": "soon"}, "option timeout is not a number"),
        ({"serverHonorsKeys": "maybe"}, "not true or false"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            HttpSink.from_options({**options, **wrong})
    with pytest.raises(ConfigurationError, match=r"needs the options .'url'."):
        HttpSink.from_options({"folder": str(tmp_path)})


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate of 127.0.0.1, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    what = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test"]
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([openssl, *what, *more], check=True, capture_output=True)
    return str(cert), str(key)


def test_a_server_is_trusted_by_its_certificate_and_knows_us_by_ours(tmp_path: Path, certificate: tuple[str, str]):
    cert, key = certificate
    inbox = Inbox()
    inbox.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=cert)
    inbox.context.load_cert_chain(cert, key)
    inbox.context.verify_mode = ssl.CERT_REQUIRED
    schema = pa.schema([("n", pa.int64())])
    with inbox.up():
        with pytest.raises(RetryableSinkError, match="CERTIFICATE_VERIFY_FAILED"):
            make(tmp_path, inbox).validate(schema)
        with pytest.raises(RetryableSinkError):
            make(tmp_path, inbox, ca_file=cert).validate(schema)
        with pytest.raises(ConfigurationError, match="cannot read the TLS files"):
            make(tmp_path, inbox, ca_file=str(tmp_path / "none.pem")).validate(schema)
        sink = make(tmp_path, inbox, ca_file=cert, client_cert=cert, client_key=key)
        sink.validate(schema)
        assert sink.commit(prepared(sink, range(3))).status is CommitStatus.COMMITTED
    assert inbox.numbers == [0, 1, 2]


def test_two_threads_share_a_client(inbox: Inbox, hook: HttpSink):
    committables = [prepared(hook, range(10 * n, 10 * n + 10), epoch=n) for n in range(4)]
    threads = [threading.Thread(target=hook.commit, args=(committable,)) for committable in committables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(inbox.numbers) == list(range(40))


def test_the_example_sends_each_row_once_however_often_it_is_run(tmp_path: Path, inbox: Inbox):
    example = Path(__file__).parents[1] / "examples" / "engine_http.py"
    environment = {**os.environ, "PYTHONPATH": str(example.parents[1] / "src")}
    sent: list[int] = []
    for _ in range(2):
        command = [sys.executable, str(example), inbox.url, str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "exactly-once" in done.stdout
        sent.append(len(inbox.posts))
    assert inbox.numbers == list(range(1000))
    assert sent[0] == sent[1] >= 10
