"""Jars from Maven Central, and the Flink jobs compiled against them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from onceward.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "scoreboard"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies"
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>scoreboard</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>{dependencies}</dependencies></project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def jars(name: str, coordinates: Sequence[str]) -> Path:
    """Return the folder of these artefacts and all that they need, which is fetched once."""
    folder = CACHE / name
    done = folder / "coordinates"
    text = "\n".join(coordinates)
    if not (done.exists() and done.read_text() == text):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        dependencies = "".join(DEPENDENCY.format(*coordinate.split(":")) for coordinate in coordinates)
        (folder / "pom.xml").write_text(POM.format(name=name, dependencies=dependencies))
        run("mvn", "--batch-mode", "--quiet", "--file", folder / "pom.xml", COPY, f"-DoutputDirectory={folder}")
        done.write_text(text)
    return folder


def classes(name: str, coordinates: Sequence[str], *sources: str) -> str:
    """Compile the Flink jobs in these files, and return their class path."""
    folder = jars(name, coordinates)
    target = folder / "classes"
    shutil.rmtree(target, ignore_errors=True)
    files = [HERE / "jobs" / "flink" / source for source in sources]
    run("javac", "-nowarn", "-cp", f"{folder}/*", "-d", target, *files)
    shutil.copy(HERE / "jobs" / "flink" / "log4j2.properties", target)
    return f"{target}:{folder}/*"


def run(program: str, *arguments: str | Path) -> None:
    """Run a program of the Java world to its end."""
    if shutil.which(program) is None:
        raise ConfigurationError(f"{program} is not on PATH: apt-get install maven openjdk-17-jdk-headless")
    subprocess.run([program, *arguments], check=True)
