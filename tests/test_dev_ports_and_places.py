"""Where local services live: ports, folders, Java."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from onceward.core.errors import ConfigurationError
from onceward.testing.machine import (
    LAST,
    LOOPBACK,
    MINIMUM_JAVA,
    accepts_connections,
    cache_home,
    find_java,
    free_port,
    java_version,
    state_home,
)

if TYPE_CHECKING:
    from pathlib import Path

FIRST_PORT_OF_OUTGOING_CONNECTIONS = 32768


def test_a_port_is_never_one_that_an_outgoing_connection_may_take() -> None:
    assert LAST <= FIRST_PORT_OF_OUTGOING_CONNECTIONS
    assert free_port() < FIRST_PORT_OF_OUTGOING_CONNECTIONS


def test_a_port_is_not_given_out_twice() -> None:
    given: set[int] = set()
    for _ in range(50):
        port = free_port(given)
        assert port not in given
        given.add(port)


def test_a_port_is_free_until_somebody_listens() -> None:
    port = free_port()
    assert not accepts_connections(port)
    with socket.create_server((LOOPBACK, port)):
        assert accepts_connections(port)
    assert not accepts_connections(port)


def test_an_argument_goes_before_the_environment_which_goes_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONCEWARD_DEV_HOME", raising=False)
    assert state_home() == tmp_path / ".run"
    monkeypatch.setenv("ONCEWARD_DEV_HOME", str(tmp_path / "chosen"))
    assert state_home() == tmp_path / "chosen"
    assert state_home("given") == tmp_path / "given"


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ONCEWARD_CACHE", raising=False)
    assert cache_home() == tmp_path / "onceward"
    monkeypatch.setenv("ONCEWARD_CACHE", str(tmp_path / "own"))
    assert cache_home() == tmp_path / "own"


def java_that_says(folder: Path, words: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("words", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_392"', 8),
    ],
)
def test_a_javas_release_is_read_from_what_it_says(tmp_path: Path, words: str, release: int) -> None:
    assert java_version(java_that_says(tmp_path, words)) == release


def test_java_home_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = java_that_says(tmp_path, f'openjdk version "{MINIMUM_JAVA}.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == java


@pytest.mark.parametrize("words", ['java version "1.8.0_392"', "no runtime present"])
def test_an_old_or_broken_java_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    java_that_says(tmp_path, words)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="Install a Java runtime"):
        find_java()


def test_a_missing_java_is_told_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(ConfigurationError, match="there is no `java` on PATH"):
        find_java()
