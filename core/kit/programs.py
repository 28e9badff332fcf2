"""Programs of this machine: how one is run, and the Java that Spark and Kafka need."""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigurationError

if TYPE_CHECKING:
    import pwd
    from collections.abc import Mapping, Sequence

MINIMUM_JAVA = 17

_JAVA_PACKAGES: Final = {
    "Linux": (
        "`apt-get install openjdk-17-jre-headless` (Debian, Ubuntu) or `dnf install java-17-openjdk-headless` (Fedora)"
    ),
    "Darwin": "`brew install openjdk@17`",
}


def run_program(
    command: Sequence[str | Path],
    *,
    user: pwd.struct_passwd | None = None,
    cwd: Path = Path("/"),
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its exit code and output (standard error joined to standard output)."""
    return subprocess.run(  # noqa: S603 - the callers run programs that they found or fetched themselves
        command,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
        cwd=cwd,
        env=env,
        **as_user(user),
    )


def as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """Return subprocess's arguments to run as another user; None: this one."""
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def java_advice() -> str:
    """Return how to install a Java runtime on this operating system."""
    package = _JAVA_PACKAGES.get(platform.system())
    return f"Install a Java runtime{f', for example {package}' if package else ''}, or set JAVA_HOME"


def find_java() -> Path:
    """Return the `java` program of JAVA_HOME, else the first on PATH.

    Raises:
        ConfigurationError: There is none, or it is older than Java 17; the message says what to install.
    """
    home, advice = os.environ.get("JAVA_HOME"), java_advice()
    program = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if program is None:
        where = f"in JAVA_HOME ({home})" if home else "on PATH"
        raise ConfigurationError(f"there is no `java` {where}; Java {MINIMUM_JAVA} or newer is needed. {advice}")
    version = java_version(Path(program))
    if version < MINIMUM_JAVA:
        raise ConfigurationError(f"{program} is Java {version}; Java {MINIMUM_JAVA} or newer is needed. {advice}")
    return Path(program)


@functools.cache
def java_version(java: Path) -> int:
    """Return the feature release (17, 21, …) of a `java` program.

    Raises:
        ConfigurationError: The program does not answer as a Java runtime does.
    """
    answer = run_program([java, "-version"]).stdout
    match = re.search(r'version "(?:1\.)?(\d+)', answer)
    if match is None:
        raise ConfigurationError(f"{java} does not run: {answer.strip()}. {java_advice()}")
    return int(match[1])
