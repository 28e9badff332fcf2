"""Checks of a server of Redis or Valkey: what a sink needs of it, and what it may lose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.contract.findings import Finding, failed, ok, warning
from onceward.core.errors import ConfigurationError, SinkError

from .client import RedisSettings, check_facts, read_facts

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_server(settings: RedisSettings, *, durable: bool = True, replicas: int = 0) -> Iterator[Finding]:
    """Check that the server answers, takes writes, and keeps what it acknowledges.

    Args:
        settings: Of the connection.
        durable: As for a RedisSink.
        replicas: The same.
    """
    try:
        facts = read_facts(settings)
        warnings = check_facts(facts, settings.shown, durable=durable, replicas=replicas)
    except ConfigurationError as error:
        yield failed("redis server", str(error), "")
        return
    except SinkError as error:
        yield failed("redis server", str(error), "check address, user and password")
        return
    yield ok("redis server", f"version {'.'.join(map(str, facts.version))}")
    yield from (warning("durability", text, "") for text in warnings)
