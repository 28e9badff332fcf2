"""All checks, and those of this machine and of the decision log's store, which is only read."""

from __future__ import annotations

import os
from importlib import metadata
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from onceward.core.errors import (
    ConfigurationError,
    EpochConflictError,
    LogDamagedError,
    NoDecisionLogError,
    OncewardError,
)
from onceward.core.log.store import local_folder
from onceward.core.log.writer import check_owner
from onceward.core.policy import COMMIT_BACKOFF, COMMIT_TIMEOUT
from onceward.testing.machine import find_java, java_version

from ..operate.logs import open_log
from ..operate.targets import kafka_target, postgres_target
from . import Finding, failed, ok, skipped, warning
from .log import DECIDED, OWNERSHIP, STARTS, check_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from onceward.core.log import LogView

    from ..operate.targets import Target

_OLDEST: Final = {"pyspark": (4, 0), "pandas": (2, 2)}
"""Spark asks for pandas wherever Arrow goes in or out of a Python function."""
_LOG: Final = "decision log"


def run_checks(
    *,
    bootstrap_servers: str | None = None,
    kafka_config: Mapping[str, str] | None = None,
    topics: Sequence[str] = (),
    pipeline: str | None = None,
    dsn: str | None = None,
    ledger_schema: str | None = None,
    store: str | None = None,
) -> list[Finding]:
    """Check this machine, and the services that are named.

    Args:
        bootstrap_servers: Kafka's address.
        kafka_config: Further settings of the connection, under librdkafka's names.
        topics: Topics whose permissions are checked.
        pipeline: Pipeline whose transactional ids are checked, and whose log.
        dsn: PostgreSQL's connection string.
        ledger_schema: Schema of onceward's own tables there; None: the default.
        store: URL of the decision log's store, or the checkpoint folder.
    """

    def kafka() -> list[Finding]:
        from .kafka import check_kafka  # noqa: PLC0415 - an extra

        if bootstrap_servers is None:
            return [skipped("kafka", "give --bootstrap-servers to check it")]
        from onceward.connectors.kafka.settings import KafkaSettings  # noqa: PLC0415

        return check_kafka(KafkaSettings(bootstrap_servers, kafka_config or {}), topics, pipeline)

    def postgres() -> list[Finding]:
        from .postgres import check_postgres, target_of  # noqa: PLC0415 - an extra

        if dsn is None:
            return [skipped("postgresql", "give --dsn to check it")]
        from onceward.connectors.database.target import Url  # noqa: PLC0415

        return check_postgres(target_of(Url.from_dsn(dsn), ledger_schema))

    targets: list[Callable[[], Target]] = []
    if bootstrap_servers is not None:
        targets.append(lambda: kafka_target(bootstrap_servers, kafka_config or {}))
    if dsn is not None:
        targets.append(lambda: postgres_target(dsn, ledger_schema))
    return [
        check_java(),
        *[check_package(name, oldest) for name, oldest in _OLDEST.items()],
        check_python(),
        *findings_of("sql", lambda: check_log(store, pipeline)),
        ok(
            "commit_timeout",
            f"{COMMIT_TIMEOUT:g} s, with pauses of up to {COMMIT_BACKOFF:g} s, unless the pipeline sets it: for "
            "that long a decided commit is retried before CommitPendingError",
        ),
        *findings_of("kafka", kafka, asked=bootstrap_servers is not None),
        *findings_of("postgres", postgres, asked=dsn is not None),
        *_check_names(store, pipeline, targets),
    ]


def _check_names(store: str | None, pipeline: str | None, targets: Sequence[Callable[[], Target]]) -> list[Finding]:
    """What the log and the targets say of the pipeline's name, under whatever sinks' names it has written."""
    if store is None or not targets:
        return [
            skipped(name, "give --store, and --bootstrap-servers or --dsn") for name in (STARTS, DECIDED, OWNERSHIP)
        ]
    try:
        return check_pipeline(store, pipeline, [target() for target in targets])
    except ModuleNotFoundError:
        return []  # told already
    except OncewardError as error:
        return [skipped(name, str(error)) for name in (STARTS, DECIDED, OWNERSHIP)]


def findings_of(extra: str, check: Callable[[], Iterable[Finding]], *, asked: bool = True) -> Iterator[Finding]:
    """What a check finds, and what it lacks or cannot do.

    Args:
        extra: Whose packages it needs.
        check: The check.
        asked: Whether somebody has asked for it, or uses what it checks.
    """
    try:
        yield from check()
    except ModuleNotFoundError as error:
        name, found, advice = f"{extra} client", f"{error.name} is not installed", f"pip install 'onceward[{extra}]'"
        yield failed(name, found, advice) if asked else skipped(name, f"{found}; if it is needed: {advice}")
    except OncewardError as error:
        yield failed(extra, str(error), "correct it")


def check_java() -> Finding:
    """Java 17 or newer, which Spark 4 needs."""
    try:
        java = find_java()
        return ok("java", f"Java {java_version(java)} ({java})")
    except ConfigurationError as error:
        return failed("java", error.message, "see the message")


def check_package(name: str, oldest: tuple[int, int]) -> Finding:
    """A package of the extra `spark`, and its version."""
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
        from onceward.connectors.spark import task  # noqa: PLC0415 - doctor also looks at what is not installed
    except ImportError:
        return skipped(check, "pyspark is not installed")
    chosen = os.environ.get("PYSPARK_PYTHON")
    found = task.obstacle(chosen or task.DEFAULT_PYTHON)
    if not found:
        return ok(check, chosen or task.DEFAULT_PYTHON)
    if not chosen:
        return warning(
            check, f"{found}, and PYSPARK_PYTHON is not set", f"unless the program sets it: {task.PYTHON_ADVICE}"
        )
    return failed(check, found, task.PYTHON_ADVICE)


def check_log(url: str | None, pipeline: str | None) -> Iterator[Finding]:
    """A decision log's store, and the standbys of its server; the arguments are those of check_store."""
    yield check_store(url, pipeline)
    scheme = urlsplit(url or "").scheme.partition("+")[0]
    if scheme in ("mariadb", "mysql"):
        yield skipped("standbys", "of PostgreSQL only: see whether this server is replicated synchronously")
    if url is not None and scheme == "postgresql":
        from .postgres import check_log_server  # noqa: PLC0415 - an extra

        yield check_log_server(url)


def check_store(url: str | None, pipeline: str | None) -> Finding:
    """Whether the store can be read, what its log says, and whether other machines see it.

    Args:
        url: Of the store, or the checkpoint folder; None: skipped.
        pipeline: Whose log; a folder tells it by itself.
    """
    if url is None:
        return skipped(_LOG, "give --store (or the checkpoint folder) to check it")
    folder, shared = local_folder(url) or (None, False)
    if folder is None and pipeline is None:
        return skipped(_LOG, "a database or bucket holds the logs of several pipelines: give --pipeline too")
    local = urlsplit(url).scheme == "sqlite" or (folder is not None and not shared)
    try:
        log = open_log(url, pipeline)
        check_owner(log.view, log.pipeline, log.store)
        found, local = f"{log.store.describe()}: pipeline {log.pipeline}, {_progress(log.view)}", not log.store.shared
    except NoDecisionLogError as error:
        obstacle = _obstacle(folder) if folder is not None else ""
        if obstacle:
            return failed(_LOG, obstacle, "make it writable for the driver, or choose another store")
        found = f"no decision log exists yet ({error}). The first start creates it"
    except OncewardError as error:
        refused = isinstance(error, ConfigurationError | EpochConflictError | LogDamagedError)
        away = "make it reachable for the driver, or choose another store"
        return failed(_LOG, str(error), "the pipeline's next start is refused: see the message" if refused else away)
    if not local:
        return ok(_LOG, found)
    advice = "suitable only if the driver always runs on this machine. Otherwise use a database, an object store or a "
    return warning(_LOG, found, f"{advice}shared folder")


def _progress(view: LogView) -> str:
    newest = f"newest decided epoch {view.decided}" if view.newest is not None else "nothing decided"
    return f"{newest}, which waits for its commit" if view.undone is not None else newest


def _obstacle(folder: Path) -> str:
    """What keeps the driver from making this folder."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"
