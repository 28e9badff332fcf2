"""One client for each process and settings, what its errors mean, and whether its server keeps what it acknowledges."""

from __future__ import annotations

import ssl
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from onceward.core.errors import ConfigurationError, RetryableSinkError, SinkError
from onceward.core.kit.options import check_seconds
from onceward.core.kit.processwide import PerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .settings import RedisSettings

_MAY_PASS: Final = ("BUSY ", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM ", "READONLY", "TRYAGAIN")
"""First words of error replies about the server's state, not about the request."""
_FORCED: Final = {"decode_responses": False, "protocol": 2}
"""Answers are read as bytes, in the forms of RESP2."""
_PASSING: Final = (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, redis.OutOfMemoryError)


def connect(settings: RedisSettings) -> redis.Redis:
    """A client; it connects at its first command.

    Its own retries are off: a delivery is repeated by whoever commits, which knows for how long.

    Raises:
        ConfigurationError: An option of the URL is none.
    """
    try:
        return redis.Redis.from_pool(_pool(settings))
    except ConfigurationError:
        raise
    except (TypeError, ValueError, OSError, redis.RedisError) as error:
        raise ConfigurationError(f"redis-py refuses an option of url: {settings.redact(str(error))}") from None


def _pool(settings: RedisSettings) -> redis.ConnectionPool:
    """Options of the URL are stronger than the arguments, but not than what the code here relies on."""
    given = {
        "username": settings.username,
        "password": settings.password,
        "socket_timeout": settings.timeout,
        "socket_connect_timeout": settings.connect_timeout,
    }
    found: dict[str, Any] = parse_url(settings.url)  # type: ignore[no-untyped-call]
    options = {**given, **found, **_FORCED, "retry": Retry(NoBackoff(), 0)}
    for name in ("socket_timeout", "socket_connect_timeout"):
        check_seconds(f"option {name} of url", options[name])
    if "ssl_min_version" in options:
        ssl.TLSVersion(options["ssl_min_version"])
    pool = redis.ConnectionPool(**options)
    pool.connection_class(**pool.connection_kwargs)  # it stays unused: only here redis-py looks at most options
    return pool


clients: Final[PerProcess[RedisSettings, Any]] = PerProcess(connect)
"""The client of this process for each settings."""


@contextmanager
def translated(settings: RedisSettings, what: str) -> Iterator[None]:
    """redis-py's errors as ours.

    Args:
        settings: Of the client.
        what: For messages: what is about to be done.
    """
    try:
        yield
    except redis.RedisError as error:
        raise explained(settings, what, error) from None


def explained(settings: RedisSettings, what: str, error: Exception) -> SinkError:
    """An error of redis-py as ours: it may pass by itself, or not."""
    words = settings.redact(str(error)) or type(error).__name__
    message = f"{what} at {settings.shown}: {words}"
    return (RetryableSinkError if _may_pass(error) else SinkError)(message)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, (redis.AuthenticationError, redis.exceptions.AuthorizationError)):
        return False
    return isinstance(error, _PASSING) or str(error).startswith(_MAY_PASS)


def evaluate(settings: RedisSettings, what: str, script: str, keys: list[bytes], arguments: list[Any]) -> Any:
    """Run a script.

    Raises:
        RetryableSinkError: No answer, or the server cannot just now.
        SinkError: It refuses.
    """
    with translated(settings, what):
        return clients.get(settings).execute_command("EVAL", script, len(keys), *keys, *arguments)


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
