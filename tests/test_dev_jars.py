"""Jars are taken by SHA-256 only, fetched once, and never half."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import onceward.testing.services
from onceward.testing.services import jars
from onceward.testing.services.machine import DevServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onceward.testing.services.jars import Coordinates, Resolver

CONTENT = b"a jar"
LOCKS = sorted(Path(onceward.testing.services.__file__).parent.glob("*.lock"))


class Resolvers:
    """Stands for Maven and Ivy: writes the content given, or complains, and counts."""

    def __init__(self, *answers: bytes | str) -> None:
        self.answers = answers
        self.asked: list[bytes | str] = []

    def usable(self) -> list[Resolver]:
        return [self._resolver(answer) for answer in self.answers]

    def _resolver(self, answer: bytes | str) -> Callable[[Sequence[Coordinates], Path, Path], str | None]:
        def resolve(wanted: Sequence[Coordinates], scratch: Path, target: Path) -> str | None:
            self.asked.append(answer)
            assert scratch in target.parents
            if isinstance(answer, str):
                return answer
            for _, artifact, version in wanted:
                (target / f"{artifact}-{version}.jar").write_bytes(answer)
            return None

        return resolve


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONCEWARD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "things-1.0.lock"
    path.write_text(f"# a comment\norg.example:thing:1.0 {hashlib.sha256(CONTENT).hexdigest()}\n")
    return path


def resolve_with(monkeypatch: pytest.MonkeyPatch, *answers: bytes | str) -> Resolvers:
    resolvers = Resolvers(*answers)
    monkeypatch.setattr(jars, "usable_resolvers", resolvers.usable)
    return resolvers


def test_jars_are_fetched_once(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolvers = resolve_with(monkeypatch, CONTENT)
    assert not jars.jars_present(lock)
    folder = jars.ensure_jars(lock)
    assert folder.name == "things-1.0"
    assert (folder / "thing-1.0.jar").read_bytes() == CONTENT
    assert jars.jars_present(lock)
    assert jars.ensure_jars(lock) == folder
    assert resolvers.asked == [CONTENT]


def test_a_jar_with_other_content_never_reaches_the_cache(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_with(monkeypatch, b"something else")
    with pytest.raises(DevServiceError, match=r"thing-1\.0\.jar is not the file expected"):
        jars.ensure_jars(lock)
    assert not jars.jars_folder(lock).exists()


def test_the_next_resolver_is_asked_when_one_fails(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolvers = resolve_with(monkeypatch, "Maven: no way there", CONTENT)
    jars.ensure_jars(lock)
    assert resolvers.asked == ["Maven: no way there", CONTENT]


def test_all_complaints_are_told_when_all_fail(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_with(monkeypatch, "Maven: no way there", "Ivy: neither")
    with pytest.raises(DevServiceError, match=r"(?s)Maven: no way there.*Ivy: neither"):
        jars.ensure_jars(lock)


def test_a_changed_lock_is_fetched_anew(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_with(monkeypatch, CONTENT)
    jars.ensure_jars(lock)
    newer = b"a newer jar"
    lock.write_text(f"org.example:thing:1.1 {hashlib.sha256(newer).hexdigest()}\n")
    resolve_with(monkeypatch, newer)
    folder = jars.ensure_jars(lock)
    assert [path.name for path in folder.glob("*.jar")] == ["thing-1.1.jar"]


def test_a_jar_deleted_from_the_cache_is_fetched_again(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolvers = resolve_with(monkeypatch, CONTENT)
    (jars.ensure_jars(lock) / "thing-1.0.jar").unlink()
    assert (jars.ensure_jars(lock) / "thing-1.0.jar").exists()
    assert len(resolvers.asked) == 2


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_lock_file_pins_each_jar_once_by_sha256(path: Path) -> None:
    pinned = jars.read_lock(path)
    assert pinned
    assert len({jar.file_name for jar in pinned}) == len(pinned)
    for jar in pinned:
        assert re.fullmatch(r"[0-9a-f]{64}", jar.sha256), jar
        assert re.fullmatch(r"[0-9][\w.-]*", jar.version), jar
