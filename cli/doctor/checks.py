"""Run all checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.checkpoint.policy import COMMIT_BACKOFF, COMMIT_TIMEOUT
from onceward.core.errors import OncewardError

from .finding import Finding, failed, ok, skipped
from .machine import check_java, check_packages, check_python
from .store import check_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
