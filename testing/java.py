"""Finds a Java that can run Kafka's broker and Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from onceward.core.errors import ConfigurationError

MINIMUM = 17

ADVICE = (
    "Install a Java runtime, for example `apt-get install openjdk-17-jre-headless` (Debian, Ubuntu), "
    "`dnf install java-17-openjdk-headless` (Fedora) or `brew install openjdk@17` (macOS), or set JAVA_HOME."
)


def find_java() -> Path:
    """The `java` program of JAVA_HOME, else the first on PATH.

    Raises:
        ConfigurationError: There is none, or it is older than Java 17; the message says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        where = f"in JAVA_HOME ({home})" if home else "on PATH"
        raise ConfigurationError(f"Java {MINIMUM} or newer is needed, and there is no `java` {where}. {ADVICE}")
    version = java_version(Path(found))
    if version < MINIMUM:
        raise ConfigurationError(f"Java {MINIMUM} or newer is needed, and {found} is Java {version}. {ADVICE}")
    return Path(found)


def java_version(java: Path) -> int:
    """The feature release (17, 21, …) of a `java` program.

    Raises:
        ConfigurationError: The program does not answer as a Java runtime does.
    """
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - the user's own Java
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if match is None:
        raise ConfigurationError(f"{java} does not run: {answer.stderr.strip() or answer.stdout.strip()}. {ADVICE}")
    return int(match[1])
