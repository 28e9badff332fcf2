"""Jars by pinned coordinates and SHA-256: fetched once with Maven, else with the Ivy that pyspark carries.

A lock file lists every jar, so nothing is resolved transitively, and where the jars come from is decided by the
user's own Maven or Ivy settings; the SHA-256 decides whether they are taken.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from xml.sax.saxutils import escape, quoteattr

from onceward.core.errors import ConfigurationError

from ..java import find_java
from .machine import DevServiceError, cache_home
from .process import run_program

if TYPE_CHECKING:
    from collections.abc import Iterator


Coordinates: TypeAlias = tuple[str, str, str]
Resolver: TypeAlias = Callable[[Sequence[Coordinates], Path, Path], "str | None"]

COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies"
LAST_CHARACTERS = 2000


def usable_resolvers() -> list[Resolver]:
    """The resolvers that this machine has, the preferred one first.

    Raises:
        ConfigurationError: There is none.
    """
    found: list[Resolver] = []
    maven, ivy = shutil.which("mvn"), ivy_jar()
    if maven:
        found.append(lambda wanted, scratch, target: with_maven(maven, wanted, scratch, target))
    if ivy:
        found.append(lambda wanted, scratch, target: with_ivy(ivy, wanted, scratch, target))
    if not found:
        raise ConfigurationError("to fetch jars, install pyspark (it carries Ivy) or put Maven's `mvn` on PATH")
    return found


def ivy_jar() -> Path | None:
    """The Ivy jar of the installed pyspark."""
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        return None
    return next(iter((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar")), None)


def with_maven(maven: str, wanted: Sequence[Coordinates], scratch: Path, target: Path) -> str | None:
    """Fetches with Maven, as the user's settings.xml says."""
    pom = scratch / "pom.xml"
    pom.write_text(_pom(wanted))
    arguments = ["-DincludeScope=runtime", "-Dmdep.overWriteSnapshots=false", f"-DoutputDirectory={target}"]
    done = run_program([maven, "--batch-mode", "--quiet", "--file", pom, COPY_DEPENDENCIES, *arguments], cwd=scratch)
    return None if done.returncode == 0 else f"Maven: {done.stdout[-LAST_CHARACTERS:]}"


def _pom(wanted: Sequence[Coordinates]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{escape(group)}</groupId><artifactId>{escape(artifact)}</artifactId>"
        f"<version>{escape(version)}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for group, artifact, version in wanted
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>onceward</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def with_ivy(ivy: Path, wanted: Sequence[Coordinates], scratch: Path, target: Path) -> str | None:
    """Fetches with Ivy, as the settings file named by ONCEWARD_IVY_SETTINGS says, or as Ivy does by itself."""
    module = scratch / "ivy.xml"
    module.write_text(_ivy_module(wanted))
    settings = os.environ.get("ONCEWARD_IVY_SETTINGS")
    command: list[str | Path] = [find_java(), "-jar", ivy, *(["-settings", settings] if settings else [])]
    command += ["-ivy", module, "-cache", scratch / "ivy-cache"]
    command += ["-retrieve", f"{target}/[artifact]-[revision].[ext]", "-types", "jar", "bundle"]
    done = run_program(command, cwd=scratch)
    return None if done.returncode == 0 else f"Ivy: {done.stdout[-LAST_CHARACTERS:]}"


def _ivy_module(wanted: Sequence[Coordinates]) -> str:
    dependencies = "".join(
        f'<dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)} transitive="false" '
        'conf="default->master"/>'
        for group, artifact, version in wanted
    )
    return (
        '<ivy-module version="2.0"><info organisation="onceward" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


PEER_JARS: Final = Path(__file__).with_name("spark-peers-4.2.0.lock")
"""Spark's own Kafka connector and PostgreSQL's JDBC driver, which the demo and the benchmarks compare with."""

LOCK_COPY = "verified.lock"


@dataclass(frozen=True)
class Jar:
    """One line of a lock file."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the jar's file."""
        return f"{self.artifact}-{self.version}.jar"


def read_lock(lock: Path) -> tuple[Jar, ...]:
    """The jars of a lock file, whose lines are `group:artifact:version sha256`."""
    lines = (line.split("#")[0].strip() for line in lock.read_text().splitlines())
    return tuple(_parse(line) for line in lines if line)


def _parse(line: str) -> Jar:
    coordinates, sha256 = line.split()
    group, artifact, version = coordinates.split(":")
    return Jar(group, artifact, version, sha256)


def jars_folder(lock: Path) -> Path:
    """The folder of the cache that holds, or will hold, exactly the jars of a lock file."""
    return cache_home() / lock.stem


def jars_present(lock: Path) -> bool:
    """Whether the jars of this lock file are in the cache; they were verified before they were put there."""
    folder = jars_folder(lock)
    copy = folder / LOCK_COPY
    if not copy.exists() or copy.read_text() != lock.read_text():
        return False
    return all((folder / jar.file_name).exists() for jar in read_lock(lock))


def ensure_jars(lock: Path) -> Path:
    """Fetches the jars of a lock file unless the cache has them, and returns their folder.

    Raises:
        ConfigurationError: There is neither Maven nor pyspark's Ivy.
        DevServiceError: A jar could not be fetched, or is not the one that the lock file names.
    """
    folder = jars_folder(lock)
    if jars_present(lock):
        return folder
    with _locked(folder.with_suffix(".fetching")):
        if not jars_present(lock):
            _fetch(lock, folder)
    return folder


def _fetch(lock: Path, folder: Path) -> None:
    jars = read_lock(lock)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        staged = Path(scratch) / "jars"
        _resolve(jars, Path(scratch), staged)
        verify(jars, staged)
        shutil.copyfile(lock, staged / LOCK_COPY)
        staged.chmod(0o755)
        if folder.exists():
            folder.rename(Path(scratch) / "replaced")
        staged.rename(folder)


def _resolve(jars: Sequence[Jar], scratch: Path, target: Path) -> None:
    complaints: list[str] = []
    for resolver in usable_resolvers():
        target.mkdir()
        complaint = resolver([(jar.group, jar.artifact, jar.version) for jar in jars], scratch, target)
        if complaint is None:
            return
        complaints.append(complaint)
        shutil.rmtree(target)
    raise DevServiceError("jars could not be fetched.\n" + "\n".join(complaints))


def verify(jars: Sequence[Jar], folder: Path) -> None:
    """Compares every jar of a folder with its SHA-256.

    Raises:
        DevServiceError: A jar is missing, or its content differs.
    """
    for jar in jars:
        path = folder / jar.file_name
        if not path.exists():
            raise DevServiceError(f"{jar.file_name} was not fetched")
        with path.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != jar.sha256:
            raise DevServiceError(f"{jar.file_name} is not the file expected: SHA-256 {found}, not {jar.sha256}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
