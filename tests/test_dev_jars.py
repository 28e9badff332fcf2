"""Jars are taken by SHA-256 only, fetched once, and never half."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import onceward.testing.services
from onceward.testing.machine import DevServiceError
from onceward.testing.services import jars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.testing.services.jars import Jar

CONTENT = b"a jar"
LOCKS = sorted(Path(onceward.testing.services.__file__).parent.glob("*.lock"))


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
