"""One client for each process and settings, and what its errors mean."""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

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
