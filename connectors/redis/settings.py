"""Where a Redis is and who we are. The password is shown nowhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import check_seconds
from onceward.core.kit.secrets import is_secret_name, redact

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
    "# is %23; or give username and password apart"
)


@dataclass(frozen=True)
class RedisSettings:
    """Settings of all connections of a sink; hashable and picklable.

    Attributes:
        url: As redis-py takes it: `redis://`, `rediss://` (TLS; `?ssl_ca_certs=…`) or `unix://`.
        username: Of the server's access control list, if it is not in the URL.
        password: If it is not in the URL.
        timeout: Seconds to wait for an answer.
        connect_timeout: Seconds to wait for a connection.
    """

    url: str = field(repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    timeout: float = 30.0
    connect_timeout: float = 10.0

    def __post_init__(self) -> None:
        _check_url(self.url)
        if self.password is not None and self._secrets_of_url():
            raise ConfigurationError("password is given twice: in url, and apart")
        for name in ("timeout", "connect_timeout"):
            check_seconds(name, getattr(self, name))

    @property
    def shown(self) -> str:
        """The URL as far as it may be shown: without user, password and options."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def redact(self, message: str) -> str:
        """A message without the password."""
        return redact(message, [self.password or "", *self._secrets_of_url()])

    def _secrets_of_url(self) -> list[str]:
        parts = urlsplit(self.url)
        found = [unquote(parts.password)] if parts.password else []
        return found + [value for name, value in parse_qsl(parts.query) if is_secret_name(name)]


def _check_url(url: str) -> None:
    """Messages repeat nothing of it: what stands where may be a piece of a password."""
    _check_escapes(url)
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
    if not unix and host and not _is_name(host):
        raise ConfigurationError("url names a host with an empty label, or one of more than 63 characters")
    unknown = sorted({name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - _OPTIONS)
    if unknown:
        raise ConfigurationError(f"url has {len(unknown)} unknown options; known are {', '.join(sorted(_OPTIONS))}")


def _check_escapes(url: str) -> None:
    """A password's own @, /, ? or # would end it: its rest would be taken for a server, and shown."""
    before, at, after = url.partition("://")[2].partition("@")
    if "#" in url or "@" in after or (at and set(before) & set("/?")):
        raise ConfigurationError(f"url has a @, /, ? or # where none can be. {_ESCAPE}")
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in url):  # noqa: PLR2004 - ASCII's controls
        raise ConfigurationError(f"url holds blanks or control characters. {_ESCAPE}")


def _is_name(host: str) -> bool:
    try:
        unquote(host).encode("idna")
    except UnicodeError:
        return False
    return True
