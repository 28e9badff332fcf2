"""Checks of this machine: Java, pyspark and what it needs, the Python of driver and executors."""

from __future__ import annotations

import os
from importlib import metadata

from onceward.core.errors import ConfigurationError
from onceward.testing.java import find_java, java_version

from .finding import Finding, failed, ok, skipped, warning

_OLDEST = {"pyspark": (4, 0), "pandas": (2, 2)}


def check_java() -> Finding:
    """Java 17 or newer, which Spark 4 needs."""
    try:
        java = find_java()
        return ok("java", f"Java {java_version(java)} ({java})")
    except ConfigurationError as error:
        return failed("java", error.message, "see the message")


def check_packages() -> list[Finding]:
    """pyspark, and the pandas that it asks for wherever Arrow goes in or out of a Python function."""
    return [_package(name, oldest) for name, oldest in _OLDEST.items()]


def _package(name: str, oldest: tuple[int, int]) -> Finding:
    advice = "pip install 'onceward[spark]'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return failed(name, "not installed", advice)
    if tuple(int(part) for part in version.split(".")[:2]) < oldest:
        return failed(name, f"{version} is older than {oldest[0]}.{oldest[1]}", advice)
    return ok(name, version)


def check_python() -> Finding:
    """The executors' Python, if they run on this machine, has the driver's version and packages."""
    check = "python of the executors"
    try:
        from onceward.connectors.spark import executors  # noqa: PLC0415 - doctor also looks at what is not installed
    except ImportError:
        return skipped(check, "pyspark is not installed")
    chosen = os.environ.get("PYSPARK_PYTHON")
    found = executors.obstacle(chosen or executors.DEFAULT)
    if not found:
        return ok(check, chosen or executors.DEFAULT)
    if not chosen:
        return warning(check, f"{found}, and PYSPARK_PYTHON is not set", f"unless the program does: {executors.ADVICE}")
    return failed(check, found, executors.ADVICE)
