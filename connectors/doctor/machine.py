"""Checks of this machine: Java, the Python of driver and executors, and the decision log's store."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from importlib import metadata

from ...core.errors import ConfigurationError, OncewardError
from ...core.log import open_store
from ..dev.java import find_java, java_version
from .finding import Finding, failed, ok, skipped, warning

_PROBE = "import sys, pyarrow, msgspec; print('.'.join(map(str, sys.version_info[:2])))"
_OLDEST_SPARK = (4, 0)


def check_java() -> Finding:
    """Java 17 or newer, which Spark 4 needs."""
    try:
        java = find_java()
        return ok("java", f"Java {java_version(java)} ({java})")
    except ConfigurationError as error:
        return failed("java", error.message, "see the message")


def check_spark() -> Finding:
    """Pyspark 4.0 or newer."""
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return failed("pyspark", "not installed", "pip install 'onceward[spark]'")
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_SPARK:
        return failed("pyspark", version, "install pyspark 4.0 or newer (tested on 4.2)")
    return ok("pyspark", version)


def check_python() -> Finding:
    """The executors' Python is the driver's, and has the packages."""
    mine = ".".join(map(str, sys.version_info[:2]))
    chosen = os.environ.get("PYSPARK_PYTHON") or os.environ.get("PYSPARK_DRIVER_PYTHON") or "python3"
    found = shutil.which(chosen)
    advice = f"set PYSPARK_PYTHON={sys.executable} before the session starts (here, and on every executor)"
    if found is None:
        return failed("python of the executors", f"{chosen} is not there", advice)
    answer = subprocess.run([found, "-c", _PROBE], capture_output=True, text=True, check=False)  # noqa: S603 - the user's own Python
    if answer.returncode != 0:
        return failed("python of the executors", f"{found} cannot import pyarrow and msgspec", advice)
    if answer.stdout.strip() != mine:
        return failed("python of the executors", f"{found} is {answer.stdout.strip()}, the driver is {mine}", advice)
    return ok("python of the executors", f"{found} is {mine}, as the driver's")


def check_store(url: str | None) -> Finding:
    """The decision log's store can be written, read and deleted from."""
    name = "decision log's store"
    if url is None:
        return skipped(name, "give --store (or the checkpoint folder) to check it")
    try:
        store = open_store(url, pipeline="onceward-doctor")
        key = f".doctor-{secrets.token_hex(4)}"
        first, second = store.put_if_absent(key, b"1"), store.put_if_absent(key, b"2")
        found = store.get(key)
        store.delete(key)
    except OncewardError as error:
        return failed(name, str(error), "make it writable for the driver, or choose another store")
    if (first, second, found) != (True, False, b"1"):
        return failed(name, f"{store.describe()} let a second put win", "it cannot hold a decision log: choose another")
    if not store.shared:
        return warning(
            name,
            f"{store.describe()} is on this machine only",
            "fine while the driver always runs here; else use a database, an object store or a shared folder",
        )
    return ok(name, store.describe())
