"""A password in any setting of any sink, source, store and command, well and badly formed, is never shown."""

from __future__ import annotations

import logging
import sys
import traceback
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

import onceward
from onceward import FileBackend, HttpSink, KafkaSink, KafkaSource, Pipeline
from onceward.cli.main import command, main
from onceward.connectors.kafka.settings import SECURITY, TRANSLATED
from onceward.connectors.spark.read.kafka_offsets import ONLY_BATCH, SELECTIONS, STARTS, STRATEGY, TIMEOUT, batch_source
from onceward.core.contract.connector import connectors
from onceward.core.errors import ConfigurationError, OncewardError
from onceward.core.kit.secrets import is_secret_name, shown_address, without_logins
from onceward.core.kit.text_options import option_names
from onceward.core.log import open_store

from .options_kit import GOOD, OPTIONS, use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

PARTS = ("Tulpen", "Mohnfeld")
"""Of the password, on both sides of a character that means something in an address."""
PASSWORDS = [sign.join(PARTS) for sign in ("", "/", "@", "?", "#", ":", ",", " ", "'", '"', "\\", "%2F")]
SCHEMES = ("postgresql+psycopg", "sqlite", "redis", "s3")
NOWHERE = "127.0.0.1:1"
_FEW = [*PASSWORDS[:3], *PASSWORDS[-4:]]
ADDRESSES = [
    *(f"postgresql://u:{password}@{NOWHERE}/x" for password in PASSWORDS),
    *(f"{scheme}://:{password}@h" for scheme, password in product(SCHEMES, PASSWORDS[:3])),
    *(f"{scheme}://h/x?password={''.join(PARTS)}" for scheme in SCHEMES),
    *(f"u:{password}@{NOWHERE}" for password in _FEW),
    *(f"host=127.0.0.1 port=1 user=u password={password}" for password in _FEW),
    f"jdbc:postgresql://u:{''.join(PARTS)}@h/x",
]


class Shown:
    """All that a person could read of what happens."""

    def __init__(self, log: pytest.LogCaptureFixture) -> None:
        self._log = log
        self._texts: list[str] = []

    def add(self, *things: Any) -> None:
        self._texts += [form for thing in things for form in (str(thing), repr(thing))]

    def error(self, error: BaseException) -> None:
        self.add(error, error.__dict__, "".join(traceback.format_exception(error)))

    def leaks(self) -> list[str]:
        texts = [*self._texts, self._log.text]
        self._texts.clear()
        self._log.clear()
        return [text[-400:] for text in texts if any(part[:6] in text or part[-6:] in text for part in PARTS)]

    def of_each(self, make: Callable[[str], Any], values: Sequence[str] = ADDRESSES) -> dict[str, list[str]]:
        """What shows a password, by the value that holds it."""
        found = {}
        for value in values:
            try:
                made = make(value)
                self.add(made)
            except (OncewardError, ValueError, TypeError) as error:
                self.error(error)
            if leaks := self.leaks():
                found[value] = leaks
        return found


@pytest.fixture
def shown(caplog: pytest.LogCaptureFixture) -> Shown:
    caplog.set_level(logging.DEBUG)
    return Shown(caplog)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "option"), OPTIONS, ids=lambda one: one if isinstance(one, str) else one.name())
def test_an_option_of_a_sink_shows_no_password_of_an_address(kind: Any, option: str, shown: Shown) -> None:
    others = {name: value for name, value in GOOD[kind.name()].items() if name.lower() != option.lower()}

    def make(value: str) -> Any:
        use(kind, {**others, option: value})
        return kind({**others, option: value}).own_sink()

    is_list = option == "key"  # which is split at commas, so that its parts look like nothing
    values = [address for address in ADDRESSES if "," not in address] if is_list else ADDRESSES
    assert shown.of_each(make, values) == {}


KAFKA = sorted(
    {*SECURITY, *TRANSLATED, "sasl.jaas.config", "acks", "enable.idempotence", "isolation.level", "nonsense"}
)


@pytest.mark.slow
@pytest.mark.parametrize("name", KAFKA)
def test_a_setting_of_kafka_shows_no_password_of_an_address(name: str, shown: Shown) -> None:
    servers = None if name == "bootstrap.servers" else NOWHERE
    bases: list[dict[str, str]] = [{}, {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}]

    for base in bases:
        where: dict[str, Any] = {"bootstrap_servers": servers}
        sink = partial(_with_setting, partial(KafkaSink, "k", topic="t", **where), base, name)
        source = partial(_with_setting, partial(KafkaSource, topics=["t"], **where), base, name)
        assert shown.of_each(sink) == shown.of_each(source) == {}


def _with_setting(make: Callable[..., Any], base: dict[str, str], name: str, value: str) -> Any:
    return make(config={**base, name: value})


@pytest.mark.parametrize("option", [*STARTS, *ONLY_BATCH, *SELECTIONS, STRATEGY, TIMEOUT])
def test_an_option_of_the_kafka_source_shows_no_password_of_an_address(option: str, shown: Shown) -> None:
    needed = {"kafka.bootstrap.servers": NOWHERE, **({} if option in SELECTIONS else {"subscribe": "t"})}
    assert shown.of_each(lambda value: batch_source({**needed, option: value})) == {}


SECRET_ARGUMENTS = [
    (sink, name)
    for sink in {kind.sink_class().__name__ for kind in connectors().values() if kind.sink}
    for name in option_names(getattr(onceward, sink))
    if is_secret_name(name)
]


@pytest.mark.parametrize(("sink", "name"), sorted(SECRET_ARGUMENTS))
def test_a_setting_that_is_a_secret_is_never_shown(sink: str, name: str, shown: Shown, tmp_path: Path) -> None:
    good = {"url": "redis://h" if sink == "RedisSink" else "http://h/", "key": "k"}
    more = {"HttpSink": {"username": "u"} if name == "password" else {}}.get(sink, {})
    needed = {**({} if sink == "HttpSink" else {"key": good["key"]}), "url": good["url"], **more}
    kind = getattr(onceward, sink)
    values: list[Any] = [*PASSWORDS, *(f"{one}\n" for one in PASSWORDS), *ADDRESSES]
    assert shown.of_each(lambda value: kind("s", tmp_path, **needed, **{name: value}), values) == {}
    assert shown.of_each(lambda value: kind("s", tmp_path, **needed, **{name: [value]}), values) == {}


def test_a_header_is_never_shown(shown: Shown, tmp_path: Path) -> None:
    values = [*PASSWORDS, *(f"{one}\r\nX: y" for one in PASSWORDS), *ADDRESSES]
    for name in ("Authorization", "X-Api-Key"):
        assert (
            shown.of_each(
                lambda value, name=name: HttpSink("s", tmp_path, url="http://h/", headers={name: value}), values
            )
            == {}
        )


def test_a_store_shows_no_password_of_its_address(
    shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def store(url: str) -> Any:
        return open_store(url, pipeline="p", existing=True)

    def pipeline(url: str) -> Any:
        return Pipeline("p", store=url, backend=FileBackend(url))

    remote = [url for url in ADDRESSES if not url.startswith("s3://") or "@" in url]
    assert shown.of_each(lambda url: store(url).describe(), remote) == {}
    assert shown.of_each(pipeline) == {}


# Commands

STARTING = {("demo", "home"), ("demo", "picture"), ("dev up", "home"), ("dev up", "topic"), ("dev up", "table")}
"""Parameters of commands that start services, whatever their values are."""
FEW = [*(f"postgresql://u:{password}@{NOWHERE}/x" for password in ("".join(PARTS), *PASSWORDS[1:3])), *ADDRESSES[-4:]]


def parameters(group: Any, *path: str) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield the name of each command, each parameter that takes a value, and the others that the command needs."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from parameters(one, *path, name)
            continue
        taken = [each for each in one.params if not getattr(each, "is_flag", False)]
        for each in taken:
            yield " ".join((*path, name)), each, [other for other in taken if other.required and other is not each]


def as_word(parameter: Any, value: str) -> str:
    return f"{parameter.opts[0]}={value}" if parameter.opts[0].startswith("-") else value


PARAMETERS = [
    pytest.param(name, each, needed, id=f"{name} {each.name}")
    for name, each, needed in parameters(command())
    if (name, each.name) not in STARTING
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameter", "needed"), PARAMETERS)
def test_an_argument_of_a_command_shows_no_password_of_an_address(  # noqa: PLR0917 - fixtures
    name: str,
    parameter: Any,
    needed: Sequence[Any],
    shown: Shown,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*name.split(), *(as_word(one, "files:none") for one in needed)]
    if parameter.name in {"url", "dsn", "bootstrap_servers"} and name == "verify":
        kind = {"url": "sql", "dsn": "postgres"}.get(parameter.name, "kafka")
        words = ["verify", f"--target={kind}:t", f"--source={kind}:t", "--key=id"]

    def run(value: str) -> None:
        monkeypatch.setattr(sys, "argv", ["onceward", *words, as_word(parameter, value)])
        with pytest.raises(SystemExit):
            main()
        shown.add(*capsys.readouterr())

    assert shown.of_each(run, FEW) == {}


# The rules

SHOWN = {
    "postgresql://u:pw@h:1,g:2/d?sslmode=require": "postgresql://u:***@h:1,g:2/d?sslmode=require",
    "postgresql://u@h/d?sslpassword=x&sslmode=require": "postgresql://u@h/d?sslpassword=***&sslmode=require",
    "postgresql://u:first/SECOND@db/x": "postgresql://…",
    "postgresql://u:first@SECOND@db": "postgresql://…",
    "postgresql://u:SECOND": "postgresql://…",
    "redis://:pw@[::1]:7/0": "redis://:***@[::1]:7/0",
    "sqlite:////home/a@b/x y.db": "sqlite:////home/a@b/x y.db",
    "s3://bucket/a@b#c": "s3://bucket/a@b#c",
    "host:9092": "host:9092",
    "u:pw@host:9092": "…",
}


@pytest.mark.parametrize(("address", "expected"), SHOWN.items())
def test_an_address_is_shown_as_far_as_it_is_certain(address: str, expected: str) -> None:
    assert shown_address(address) == expected == shown_address(expected)


TEXTS = {
    "cannot reach (postgresql://u:pw@h/d): refused": "cannot reach (postgresql://u:***@h/d): refused",
    "no host 'u:first SECOND@h'": "no host '…'",
    "in kafka:u:pw@host:1, twice": "in ***@host:1, twice",
    "dsn host=h password='a b' user=u": "dsn host=h password=*** user=u",
    "said 'it failed: ask me@x.org at postgresql://u:pw@h'": "said 'it failed: ask me@x.org at postgresql://u:***@h'",
    "mail me@x.org, at 12:30, in https://medium.com/@me": "mail me@x.org, at 12:30, in https://medium.com/@me",
    'password="my pass word" for u': "password=*** for u",
    "{'sasl.password': 'x y', 'n': 1}": "{'sasl.password': ***, 'n': 1}",
    '{"access_token":"x"}': '{"access_token":***}',
    "//u:pw@h, or postgresql:/u:p/w@h": "***@h, or ***@h",
    "max_tokens = 5, column token = int64": "max_tokens = 5, column token = int64",
    "no file /mnt/data:2026@eu/x": "no file /mnt/data:2026@eu/x",
    "module:name of 'https://h:80/x'": "module:name of 'https://h:80/x'",
}


@pytest.mark.parametrize(("text", "expected"), TEXTS.items())
def test_a_text_hides_logins_and_nothing_else(text: str, expected: str) -> None:
    assert without_logins(text) == expected == without_logins(expected)
    assert ConfigurationError(text).message == expected


def test_an_error_that_is_given_as_the_message_of_another_one_hides_its_logins_too() -> None:
    assert ConfigurationError(ValueError("password=x")).message == "password=***"  # type: ignore[arg-type]


@pytest.mark.parametrize("piece", ["a", ":", "a:", "'", '"a":', "a.", "://", "s3://a:", "password", "x@", "a:b@"])
def test_a_long_text_is_searched_in_a_time_that_grows_with_its_length(piece: str) -> None:
    assert without_logins(f"{piece * (100_000 // len(piece))} @ password=x").endswith("@ password=***")


@pytest.mark.parametrize("address", [one for one in SHOWN if "SECOND" in one and "@" in one])
def test_a_malformed_address_is_refused_before_anything_is_connected_to(address: str) -> None:
    with pytest.raises(ConfigurationError, match="percent-encode"):
        onceward.PostgresSink("p", dsn=address, table="t")
