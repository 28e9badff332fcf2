"""Where local services live, and what they are made of: ports, folders, Java, jars that are taken by SHA-256 only."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import onceward.testing.services
from onceward.core.errors import ConfigurationError
from onceward.core.kit.programs import MINIMUM_JAVA, find_java, java_version
from onceward.testing.machine import (
    LAST,
    LOOPBACK,
    DevServiceError,
    accepts_connections,
    cache_home,
    free_port,
    needing,
    state_home,
)
from onceward.testing.services import jars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.testing.services.jars import Jar

CONTENT = b"a jar"
LOCKS = sorted(Path(onceward.testing.services.__file__).parent.glob("*.lock"))
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


def test_a_process_that_may_open_no_more_files_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        free_port()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(ModuleNotFoundError("No module", name="psycopg"), "psycopg is needed", id="it-is-not-there"),
        pytest.param(ImportError("no pq\nwrapper"), "no pq wrapper", id="it-lacks-something-itself"),
    ],
)
def test_what_cannot_be_imported_is_told_in_a_line_with_what_to_install(error: ImportError, words: str) -> None:
    with pytest.raises(ConfigurationError) as raised, needing("postgres"):
        raise error
    assert raised.value.message == f"{words}: pip install 'onceward[postgres]'"


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


def resolve_with(monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Shell scripts stand for Maven and Ivy; $1 is the folder to fetch to."""

    def resolvers(_: Sequence[Jar], scratch: Path, target: Path) -> dict[str, list[str]]:
        assert scratch in target.parents
        return {name: ["sh", "-c", script, name, str(target)] for name, script in scripts.items()}

    monkeypatch.setattr(jars, "resolvers", resolvers)


FETCHES = "printf 'a jar' > $1/thing-1.0.jar"


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONCEWARD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "things-1.0.lock"
    path.write_text(f"# a comment\norg.example:thing:1.0 {hashlib.sha256(CONTENT).hexdigest()}\n")
    return path


def test_jars_are_fetched_once_and_again_if_one_is_deleted(
    lock: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    resolve_with(monkeypatch, Maven=f"{FETCHES}; echo >> {tmp_path}/asked")
    assert not jars.jars_present(lock)
    for times in (1, 2):
        folder = jars.ensure_jars(lock)
        assert jars.jars_present(lock)
        assert jars.ensure_jars(lock) == folder
        assert (folder.name, (folder / "thing-1.0.jar").read_bytes()) == ("things-1.0", CONTENT)
        assert len((tmp_path / "asked").read_text()) == times
        (folder / "thing-1.0.jar").unlink()


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("printf 'something else' > $1/thing-1.0.jar", r"thing-1\.0\.jar is not the file expected"),
        ("true", r"thing-1\.0\.jar was not fetched"),
    ],
)
def test_a_jar_with_other_content_or_none_never_reaches_the_cache(
    lock: Path, monkeypatch: pytest.MonkeyPatch, script: str, complaint: str
) -> None:
    resolve_with(monkeypatch, Maven=script)
    with pytest.raises(DevServiceError, match=complaint):
        jars.ensure_jars(lock)
    assert not jars.jars_folder(lock).exists()


def test_the_next_resolver_is_asked_when_one_fails(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_with(monkeypatch, Maven="echo half > $1/thing-1.0.jar; exit 1", Ivy=FETCHES)
    assert (jars.ensure_jars(lock) / "thing-1.0.jar").read_bytes() == CONTENT


def test_all_complaints_are_told_when_all_fail(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_with(monkeypatch, Maven="echo no way there; exit 1", Ivy="echo neither; exit 1")
    with pytest.raises(DevServiceError, match=r"(?s)Maven: no way there.*Ivy: neither"):
        jars.ensure_jars(lock)


def test_a_changed_lock_is_fetched_anew(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_with(monkeypatch, Maven=FETCHES)
    jars.ensure_jars(lock)
    lock.write_text(f"org.example:thing:1.1 {hashlib.sha256(b'newer').hexdigest()}\n")
    resolve_with(monkeypatch, Maven="printf newer > $1/thing-1.1.jar")
    folder = jars.ensure_jars(lock)
    assert [path.name for path in folder.glob("*.jar")] == ["thing-1.1.jar"]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_lock_file_pins_each_jar_once_by_sha256(path: Path) -> None:
    pinned = jars.read_lock(path)
    assert pinned
    assert len({jar.file_name for jar in pinned}) == len(pinned)
    for jar in pinned:
        assert re.fullmatch(r"[0-9a-f]{64}", jar.sha256), jar
        assert re.fullmatch(r"[0-9][\w.-]*", jar.version), jar
