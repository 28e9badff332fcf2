"""Jars by pinned coordinates and SHA-256: fetched once with Maven, else with the Ivy that pyspark carries.

A lock file lists every jar, so nothing is resolved transitively, and where the jars come from is decided by the
user's own Maven or Ivy settings; the SHA-256 decides whether they are taken.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.errors import ConfigurationError
from onceward.core.kit.programs import find_java, run_program

from ..machine import DevServiceError, cache_home, lock_file

if TYPE_CHECKING:
    from collections.abc import Sequence

PEER_JARS: Final = Path(__file__).with_name("spark-peers-4.2.0.lock")
"""Spark's own Kafka connector and PostgreSQL's JDBC driver, which the demo and the benchmarks compare with."""

_COPY_DEPENDENCIES: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies"
_POM: Final = """<project><modelVersion>4.0.0</modelVersion>
<groupId>onceward</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>{}</dependencies></project>
"""
_MAVEN_JAR: Final = """
<dependency><groupId>{0.group}</groupId><artifactId>{0.artifact}</artifactId><version>{0.version}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""
_IVY: Final = """<ivy-module version="2.0"><info organisation="onceward" module="jars"/>
<configurations><conf name="default"/></configurations><dependencies>{}</dependencies></ivy-module>
"""
_IVY_JAR: Final = """
<dependency org="{0.group}" name="{0.artifact}" rev="{0.version}" transitive="false" conf="default->master"/>"""
_VERIFIED: Final = "verified.lock"
_LAST_CHARACTERS: Final = 2000


class Jar(NamedTuple):
    """One line of a lock file."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the jar's file."""
        return f"{self.artifact}-{self.version}.jar"


def read_lock(lock: Path) -> list[Jar]:
    """Read the jars of a lock file, whose lines are `group:artifact:version sha256`."""
    lines = (line.split("#")[0].replace(":", " ").split() for line in lock.read_text().splitlines())
    return [Jar(*line) for line in lines if line]


def jars_folder(lock: Path) -> Path:
    """Return the folder of the cache that holds, or will hold, exactly the jars of a lock file."""
    return cache_home() / lock.stem


def jars_present(lock: Path) -> bool:
    """Return whether the jars of this lock file are in the cache; they were verified before they were put there."""
    folder = jars_folder(lock)
    verified = folder / _VERIFIED
    if not verified.exists() or verified.read_text() != lock.read_text():
        return False
    return all((folder / jar.file_name).exists() for jar in read_lock(lock))


def ensure_jars(lock: Path) -> Path:
    """Fetch the jars of a lock file unless the cache has them, and return their folder.

    Raises:
        ConfigurationError: There is neither Maven nor pyspark's Ivy.
        DevServiceError: A jar could not be fetched, or is not the one that the lock file names.
    """
    folder = jars_folder(lock)
    if not jars_present(lock):
        with lock_file(folder.with_suffix(".fetching")):
            if not jars_present(lock):
                _fetch(lock, folder)
    return folder


def _fetch(lock: Path, folder: Path) -> None:
    jars = read_lock(lock)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as name:
        scratch, staged = Path(name), Path(name, "jars")
        _run_resolvers(jars, scratch, staged)
        for jar in jars:
            _verify(jar, staged / jar.file_name)
        shutil.copyfile(lock, staged / _VERIFIED)
        staged.chmod(0o755)
        if folder.exists():
            folder.rename(scratch / "replaced")
        staged.rename(folder)


def _run_resolvers(jars: Sequence[Jar], scratch: Path, target: Path) -> None:
    complaints: list[str] = []
    for name, command in resolvers(jars, scratch, target).items():
        target.mkdir()
        done = run_program(command, cwd=scratch)
        if done.returncode == 0:
            return
        complaints.append(f"{name}: {done.stdout[-_LAST_CHARACTERS:]}")
        shutil.rmtree(target)
    raise DevServiceError("jars could not be fetched.\n" + "\n".join(complaints))


def resolvers(jars: Sequence[Jar], scratch: Path, target: Path) -> dict[str, list[str | Path]]:
    """Return the commands of this machine that fetch jars into `target`, by name, the preferred one first.

    Maven is set up by the user's settings.xml, Ivy by the settings file named in ONCEWARD_IVY_SETTINGS, if any.

    Raises:
        ConfigurationError: There is none, or no Java to run it.
    """
    found: dict[str, list[str | Path]] = {}
    maven, ivy = shutil.which("mvn"), _ivy_jar()
    if maven:
        pom = scratch / "pom.xml"
        pom.write_text(_POM.format("".join(_MAVEN_JAR.format(jar) for jar in jars)))
        found["Maven"] = [maven, "--batch-mode", "--quiet", "--file", pom, _COPY_DEPENDENCIES]
        found["Maven"] += ["-DincludeScope=runtime", "-Dmdep.overWriteSnapshots=false", f"-DoutputDirectory={target}"]
    if ivy:
        module = scratch / "ivy.xml"
        module.write_text(_IVY.format("".join(_IVY_JAR.format(jar) for jar in jars)))
        settings = os.environ.get("ONCEWARD_IVY_SETTINGS")
        found["Ivy"] = [find_java(), "-jar", ivy, *(["-settings", settings] if settings else []), "-ivy", module]
        found["Ivy"] += ["-cache", scratch / "ivy-cache", "-retrieve", f"{target}/[artifact]-[revision].[ext]"]
        found["Ivy"] += ["-types", "jar", "bundle"]
    if not found:
        raise ConfigurationError("to fetch jars, install pyspark (it carries Ivy) or put Maven's `mvn` on PATH")
    return found


def _ivy_jar() -> Path | None:
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        return None
    return next(iter((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar")), None)


def _verify(jar: Jar, path: Path) -> None:
    if not path.exists():
        raise DevServiceError(f"{jar.file_name} was not fetched")
    with path.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != jar.sha256:
        raise DevServiceError(f"{jar.file_name} is not the file expected: SHA-256 {found}, not {jar.sha256}")
