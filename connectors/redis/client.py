"""Where a Redis is and who we are, one client for each process and settings, and what a server keeps.

The password is shown nowhere.
"""

from __future__ import annotations

import re
import ssl
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from onceward.core.errors import ConfigurationError, RetryableSinkError, SinkError, text_of
from onceward.core.kit.processwide import PerProcess
from onceward.core.kit.secrets import is_secret_name, redact
from onceward.core.kit.text_options import check_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCHEMES: Final = ("redis", "rediss", "unix")
_OPTIONS: Final = frozenset(
    {
        "client_name",
        "db",
        "decode_responses",
        "health_check_interval",
        "max_connections",
        "password",
        "protocol",
        "retry_on_timeout",
        "socket_connect_timeout",
        "socket_keepalive",
        "socket_timeout",
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_ciphers",
        "ssl_keyfile",
        "ssl_min_version",
        "ssl_password",
        "username",
    }
)
"""Of redis-py, those that text can give, and that cannot fail later than when a client is made."""
_DATABASE: Final = re.compile(r"/?|/[0-9]+/?")
_ESCAPE: Final = (
    "In a user, password, path or option percent-encode what is not a letter or digit: @ is %40, / is %2F, ? is %3F, "
    "# is %23; or give username and password separately"
)
_FORCED: Final = {"decode_responses": False, "protocol": 2}
"""Answers are read as bytes, in the forms of RESP2."""
_REFUSALS: Final = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
_PASSING: Final = (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, redis.OutOfMemoryError)
_MAY_PASS: Final = ("BUSY ", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM ", "READONLY", "TRYAGAIN")
"""First words of error replies about the server's state, not about the request."""
_LONGEST_VALUE: Final = "proto-max-bulk-len"
_LONGEST_REQUEST: Final = "client-query-buffer-limit"
_DEFAULT_VALUE: Final = 512 << 20
_DEFAULT_REQUEST: Final = 1 << 30
LEAST_REQUEST: Final = 64 << 20
"""Bytes that a delivery of many rows fits into."""
_WAITAOF_SINCE: Final = (7, 2)
"""Of Redis; each Valkey has it, and says that it is Redis 7.2 or newer."""


@dataclass(frozen=True)
class RedisSettings:
    """Settings of all connections of a sink, which RedisSink describes; hashable and picklable."""

    url: str = field(repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    timeout: float = 30.0
    connect_timeout: float = 10.0

    def __post_init__(self) -> None:
        _check_url(self.url)
        if self.password is not None and self._secrets_of_url():
            raise ConfigurationError("password is given twice: in url, and separately")
        check_seconds("timeout", self.timeout)
        check_seconds("connect_timeout", self.connect_timeout)

    @property
    def shown(self) -> str:
        """The URL as far as it may be shown: without user, password and options."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def redact(self, message: str) -> str:
        """Return a message in which the password is replaced by ***."""
        return redact(message, [self.password or "", *self._secrets_of_url()])

    def _secrets_of_url(self) -> list[str]:
        parts = urlsplit(self.url)
        secrets = [unquote(parts.password)] if parts.password else []
        return secrets + [value for name, value in parse_qsl(parts.query) if is_secret_name(name)]


def _check_url(url: str) -> None:
    """Check the URL; messages repeat nothing of it, as any part of it may be a piece of a password.

    A password's own @, /, ? or # would end it: its rest would be taken for a server, and shown.
    """
    before, at, after = url.partition("://")[2].partition("@")
    if "#" in url or "@" in after or (at and set(before) & set("/?")):
        raise ConfigurationError(f"url has a @, /, ? or # where it is not allowed. {_ESCAPE}")
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in url):  # noqa: PLR2004 - ASCII's controls
        raise ConfigurationError(f"url contains spaces or control characters. {_ESCAPE}")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigurationError(f"url is not a URL. {_ESCAPE}") from None
    unix = parts.scheme == "unix"
    if parts.scheme not in _SCHEMES or not (parts.path if unix else host):
        raise ConfigurationError("url must begin with redis://, rediss:// or unix:// and name a server")
    if not unix and not _DATABASE.fullmatch(parts.path):
        raise ConfigurationError(f"url has a path that is not the number of a database. {_ESCAPE}")
    try:
        unquote("" if unix else host or "").encode("idna")
    except UnicodeError:
        raise ConfigurationError("url names a host with an empty label, or one of more than 63 characters") from None
    unknown = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - _OPTIONS
    if unknown:
        raise ConfigurationError(f"url has {len(unknown)} unknown options; known are {', '.join(sorted(_OPTIONS))}")


def connect(settings: RedisSettings) -> redis.Redis:
    """Make a client, which connects at its first command.

    Options of the URL are stronger than the arguments, but not than what the code here relies on. The client's own
    retries are off: a delivery is repeated by whoever commits, which knows for how long.

    Raises:
        ConfigurationError: An option of the URL is not valid.
    """
    options_ = {
        "username": settings.username,
        "password": settings.password,
        "socket_timeout": settings.timeout,
        "socket_connect_timeout": settings.connect_timeout,
    }
    try:
        parameters: dict[str, Any] = parse_url(settings.url)  # type: ignore[no-untyped-call]
        options = {**options_, **parameters, **_FORCED, "retry": Retry(NoBackoff(), 0)}
        for name in ("socket_timeout", "socket_connect_timeout"):
            check_seconds(f"option {name} of url", options[name])
        if "ssl_min_version" in options:
            ssl.TLSVersion(options["ssl_min_version"])
        pool = redis.ConnectionPool(**options)
        pool.connection_class(**pool.connection_kwargs)  # it stays unused: only here redis-py looks at most options
        return redis.Redis.from_pool(pool)
    except ConfigurationError:
        raise
    except (TypeError, ValueError, OSError, redis.RedisError) as error:
        raise ConfigurationError(f"redis-py refuses an option of url: {settings.redact(text_of(error))}") from None


clients: Final[PerProcess[RedisSettings, Any]] = PerProcess(connect)
"""The client of this process for each settings."""


@contextmanager
def asking(settings: RedisSettings, what: str) -> Iterator[Any]:
    """Yield the client; raise redis-py's errors as ours.

    Args:
        settings: Of the client.
        what: For messages: what cannot be done then.
    """
    try:
        yield clients.get(settings)
    except redis.RedisError as error:
        raise redis_error(settings, what, error) from None


def redis_error(settings: RedisSettings, what: str, error: Exception) -> SinkError:
    """Return an error of redis-py as ours: retryable if it may go away by itself."""
    passing = isinstance(error, _PASSING) or text_of(error).startswith(_MAY_PASS)
    kind = RetryableSinkError if passing and not isinstance(error, _REFUSALS) else SinkError
    return kind(f"{what} at {settings.shown}: {settings.redact(text_of(error))}")


class RedisFacts(NamedTuple):
    """The facts that a server reports about itself."""

    version: tuple[int, int]
    """Of Redis, or of the Redis that it is compatible with: major, minor."""
    role: str
    cluster: bool
    append_only: bool
    fsync: str | None
    """appendfsync, if it says so."""
    evicts: bool
    """Whether it deletes keys, with no time to live too, when its memory is full."""
    replicas: int
    """How many are connected."""
    longest_value: int = _DEFAULT_VALUE
    """Bytes of a value (proto-max-bulk-len); Redis' default where it does not say so."""
    longest_request: int = _DEFAULT_REQUEST
    """Bytes of a request (client-query-buffer-limit); Redis' default where it does not say so."""


def read_facts(settings: RedisSettings) -> RedisFacts:
    """Return the version, the role and the settings of a Redis server.

    Raises:
        RetryableSinkError: It does not answer.
        SinkError: It refuses this user.
    """
    with asking(settings, "cannot ask the server about itself") as client:
        info = {str(name): str(value) for name, value in client.execute_command("INFO").items()}
        settings_of: dict[str, Any] = {}
        for name in ("appendfsync", _LONGEST_VALUE, _LONGEST_REQUEST):
            with suppress(redis.ResponseError):  # often forbidden, and then not known
                answer = client.execute_command("CONFIG GET", name)
                settings_of.update(answer if isinstance(answer, dict) else {})
    major, minor, *_ = info["redis_version"].split(".")
    return RedisFacts(
        version=(int(major), int(minor)),
        role=info.get("role", "master"),
        cluster=info.get("cluster_enabled") == "1" or info.get("redis_mode") == "cluster",
        append_only=info.get("aof_enabled") == "1",
        fsync=settings_of.get("appendfsync") or None,
        evicts=int(info.get("maxmemory", 0)) > 0 and info.get("maxmemory_policy", "").startswith("allkeys"),
        replicas=int(info.get("connected_slaves", 0)),
        longest_value=int(settings_of.get(_LONGEST_VALUE, _DEFAULT_VALUE)),
        longest_request=int(settings_of.get(_LONGEST_REQUEST, _DEFAULT_REQUEST)),
    )


def check_facts(facts: RedisFacts, where: str, *, durable: bool, replicas: int) -> list[str]:
    """Check that a server can keep rows; return warnings if it may lose acknowledged ones.

    Args:
        facts: What the server says.
        where: For messages: the server.
        durable: Whether it must keep what it acknowledges.
        replicas: How many replicas must have it too.

    Raises:
        ConfigurationError: This server cannot do it.
    """
    if refusal := _refusal(facts, where):
        raise ConfigurationError(refusal)
    forgets = []
    if not facts.append_only:
        forgets.append("it has no append-only file (set appendonly to yes)")
    if facts.append_only and facts.fsync == "no":
        forgets.append("it never says that its append-only file is on disk (set appendfsync to always or everysec)")
    if facts.evicts:
        forgets.append("it evicts any key when its memory is full (set maxmemory-policy to noeviction)")
    if not durable:
        return [f"{where} may lose rows that it has acknowledged: {why}" for why in forgets]
    lacks = f"would lose rows that it has acknowledged: {'; '.join(forgets)}" if forgets else ""
    if not lacks and facts.version < _WAITAOF_SINCE:
        lacks = "is older than 7.2 and cannot say when rows are on disk (WAITAOF)"
    if lacks:
        raise ConfigurationError(f"{where} {lacks}. Or set durable=False, which makes the sink at-most-once")
    if facts.replicas < replicas:
        raise ConfigurationError(f"{where} has {facts.replicas} replicas, fewer than replicas={replicas}")
    slow = facts.fsync == "everysec"
    return [f"{where} has appendfsync everysec: each delivery waits for up to a second"] if slow else []


def _refusal(facts: RedisFacts, where: str) -> str:
    if facts.cluster:
        return (
            f"{where} is a Redis Cluster: rows and their marker are one write, which a cluster does for keys of one "
            "slot only. Give a server without cluster mode"
        )
    if facts.role != "master":
        return f"{where} is a replica: give the address of the primary"
    if facts.longest_request < LEAST_REQUEST:
        return f"{where} takes too little for a delivery: set client-query-buffer-limit to {LEAST_REQUEST} or more"
    return ""
