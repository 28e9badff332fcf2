"""What is asked of a server before anything is written: that it keeps what it acknowledges."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import redis

from onceward.core.errors import ConfigurationError

from .client import clients, translated

if TYPE_CHECKING:
    from .settings import RedisSettings

_WAITAOF_SINCE: Final = (7, 2)
"""Of Redis; each Valkey has it, and says that it is Redis 7.2 or newer."""


class Facts(NamedTuple):
    """What a server says of itself.

    Attributes:
        version: Of Redis, or of the Redis that it is compatible with: major, minor.
        role: "master" or "slave".
        cluster: Whether it is part of a cluster.
        append_only: Whether it has an append-only file.
        fsync: appendfsync, if it says so.
        evicts: Whether it deletes keys, with no time to live too, when its memory is full.
        replicas: How many are connected.
    """

    version: tuple[int, int]
    role: str
    cluster: bool
    append_only: bool
    fsync: str | None
    evicts: bool
    replicas: int


def read_facts(settings: RedisSettings) -> Facts:
    """Ask the server.

    Raises:
        RetryableSinkError: It does not answer.
        SinkError: It refuses this user.
    """
    client = clients.get(settings)
    with translated(settings, "cannot ask the server about itself"):
        info = {str(name): str(value) for name, value in client.execute_command("INFO").items()}
        fsync = None
        with suppress(redis.ResponseError):  # often forbidden, and then not known
            found = client.execute_command("CONFIG GET", "appendfsync")
            fsync = str(next(iter(found.values()), "")) if isinstance(found, dict) else None
    major, minor, *_ = info["redis_version"].split(".")
    return Facts(
        version=(int(major), int(minor)),
        role=info.get("role", "master"),
        cluster=info.get("cluster_enabled") == "1" or info.get("redis_mode") == "cluster",
        append_only=info.get("aof_enabled") == "1",
        fsync=fsync or None,
        evicts=int(info.get("maxmemory", 0)) > 0 and info.get("maxmemory_policy", "").startswith("allkeys"),
        replicas=int(info.get("connected_slaves", 0)),
    )


def check_facts(facts: Facts, where: str, *, durable: bool, replicas: int) -> list[str]:
    """What to warn of.

    Args:
        facts: What the server says.
        where: For messages: the server.
        durable: Whether it must keep what it acknowledges.
        replicas: How many replicas must have it too.

    Raises:
        ConfigurationError: This server cannot do it.
    """
    if facts.cluster:
        raise ConfigurationError(
            f"{where} is a Redis Cluster: rows and their marker are one write, which a cluster does for keys of one "
            "slot only. Give a server without cluster mode"
        )
    if facts.role != "master":
        raise ConfigurationError(f"{where} is a replica: give the primary")
    forgets = _forgets(facts)
    if not durable:
        return [f"{where} may lose rows that it has acknowledged: {why}" for why in forgets]
    if forgets:
        raise ConfigurationError(
            f"{where} would lose rows that it has acknowledged: {'; '.join(forgets)}. Or say durable=False: then it is "
            "at most once"
        )
    if facts.version < _WAITAOF_SINCE:
        raise ConfigurationError(
            f"{where} is older than 7.2 and cannot say when rows are on disk (WAITAOF). Or say durable=False: then it "
            "is at most once"
        )
    if facts.replicas < replicas:
        raise ConfigurationError(f"{where} has {facts.replicas} replicas, and replicas={replicas} is asked for")
    slow = facts.fsync == "everysec"
    return [f"{where} has appendfsync everysec: each delivery waits for up to a second"] if slow else []


def _forgets(facts: Facts) -> list[str]:
    found = []
    if not facts.append_only:
        found.append("it has no append-only file (set appendonly to yes)")
    if facts.append_only and facts.fsync == "no":
        found.append("it never says that its append-only file is on disk (set appendfsync to always or everysec)")
    if facts.evicts:
        found.append("it evicts any key when its memory is full (set maxmemory-policy to noeviction)")
    return found
