"""All checks, and those of this machine and of the decision log's store, which is only read."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from onceward.core.checkpoint.policy import COMMIT_BACKOFF, COMMIT_TIMEOUT
from onceward.core.errors import ConfigurationError, NoDecisionLogError, OncewardError
from onceward.testing.machine import find_java, java_version

from ..operate.logs import open_log
from .finding import Finding, failed, ok, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onceward.core.log import LogView


def run_checks(
    *,
    bootstrap_servers: str | None = None,
    kafka_config: Mapping[str, str] | None = None,
    topics: Sequence[str] = (),
    pipeline: str | None = None,
    dsn: str | None = None,
    store: str | None = None,
) -> list[Finding]:
    """Check this machine, and the services that are named.

    Args:
        bootstrap_servers: Kafka's address.
        kafka_config: Further settings of the connection, under librdkafka's names.
        topics: Topics whose permissions are checked.
        pipeline: Pipeline whose transactional ids are checked, and whose log.
        dsn: PostgreSQL's connection string.
        store: URL of the decision log's store, or the checkpoint folder.
    """
    return [
        check_java(),
        *check_packages(),
        check_python(),
        check_store(store, pipeline),
        _commit_timeout(),
        *_kafka(bootstrap_servers, kafka_config or {}, topics, pipeline),
        *_postgres(dsn),
    ]


def _commit_timeout() -> Finding:
    found = f"{COMMIT_TIMEOUT:g} s, with pauses of up to {COMMIT_BACKOFF:g} s, unless the pipeline sets it"
    return ok("commit_timeout", f"{found}: for so long a decided commit is tried again before CommitPendingError")


def _client(check: str, missing: str | None, *, asked: bool) -> Finding:
    found, advice = f"{missing} is not installed", f"pip install 'onceward[{check.split(maxsplit=1)[0]}]'"
    return failed(check, found, advice) if asked else skipped(check, f"{found}; if it is needed: {advice}")


def _kafka(
    bootstrap_servers: str | None, config: Mapping[str, str], topics: Sequence[str], pipeline: str | None
) -> list[Finding]:
    try:
        from .kafka import check_kafka  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        return [_client("kafka client", error.name, asked=bootstrap_servers is not None)]
    try:
        return check_kafka(bootstrap_servers, config, topics, pipeline)
    except OncewardError as error:
        return [failed("kafka", str(error), "correct it")]


def _postgres(dsn: str | None) -> list[Finding]:
    try:
        from .postgres import check_postgres  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        return [_client("postgres client", error.name, asked=dsn is not None)]
    try:
        return check_postgres(dsn)
    except OncewardError as error:
        return [failed("postgresql", str(error), "correct it")]


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
        from onceward.connectors.spark import cluster  # noqa: PLC0415 - doctor also looks at what is not installed
    except ImportError:
        return skipped(check, "pyspark is not installed")
    chosen = os.environ.get("PYSPARK_PYTHON")
    found = cluster.obstacle(chosen or cluster.DEFAULT_PYTHON)
    if not found:
        return ok(check, chosen or cluster.DEFAULT_PYTHON)
    if not chosen:
        return warning(
            check, f"{found}, and PYSPARK_PYTHON is not set", f"unless the program does: {cluster.PYTHON_ADVICE}"
        )
    return failed(check, found, cluster.PYTHON_ADVICE)


_NAME = "decision log"
_ON_THIS_MACHINE = (
    "fine while the driver always runs on this machine only; else use a database, an object store or a shared folder"
)


def check_store(url: str | None, pipeline: str | None) -> Finding:
    """Whether the store can be read, what its log says, and whether other machines see it.

    Args:
        url: Of the store, or the checkpoint folder; None: skipped.
        pipeline: Whose log; a folder tells it by itself.
    """
    if url is None:
        return skipped(_NAME, "give --store (or the checkpoint folder) to check it")
    parts = urlsplit(url)
    folder = Path(unquote(parts.path)) if parts.scheme in ("", "file") else None
    if folder is None and pipeline is None:
        return skipped(_NAME, "a database or bucket holds the logs of several pipelines: give --pipeline too")
    local = parts.scheme == "sqlite" or (folder is not None and "shared=true" not in parts.query)
    try:
        log = open_log(url, pipeline)
        found, local = f"{log.store.describe()}: pipeline {log.pipeline}, {_progress(log.view)}", not log.store.shared
    except NoDecisionLogError as error:
        obstacle = _obstacle(folder) if folder is not None else ""
        if obstacle:
            return failed(_NAME, obstacle, "make it writable for the driver, or choose another store")
        found = f"no decision log yet ({error}): the first start makes it"
    except OncewardError as error:
        return failed(_NAME, str(error), "make it reachable for the driver, or choose another store")
    return warning(_NAME, found, _ON_THIS_MACHINE) if local else ok(_NAME, found)


def _progress(view: LogView) -> str:
    newest = f"newest decided epoch {view.decided}" if view.newest is not None else "nothing decided"
    return f"{newest}, which waits for its commit" if view.undone is not None else newest


def _obstacle(folder: Path) -> str:
    """What keeps the driver from making this folder."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"
