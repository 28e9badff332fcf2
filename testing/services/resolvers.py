"""Two programs that fetch exactly the artefacts named: Maven, and the Ivy inside pyspark.

Each resolver gets coordinates (group, artifact, version), a scratch folder and a target folder, and returns None,
or a complaint if it failed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias
from xml.sax.saxutils import escape, quoteattr

from onceward.core.errors import ConfigurationError

from ..java import find_java
from .process import run_program

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
