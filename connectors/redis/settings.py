"""Where a Redis is and who we are. The password is shown nowhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ...core.errors import ConfigurationError

_SCHEMES: Final = ("redis", "rediss", "unix")
_SECRET: Final = "password"  # noqa: S105 - the word, not one


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
        try:
            parts = urlsplit(self.url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise ConfigurationError("url is not a URL") from None
        if parts.scheme not in _SCHEMES or not (host or parts.path):
            raise ConfigurationError("url must begin with redis://, rediss:// or unix:// and name a server")
        if self.password is not None and self._secrets_of_url():
            raise ConfigurationError("password is given twice: in url, and apart")
        for name in ("timeout", "connect_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be above 0 seconds, not {getattr(self, name)}")

    @property
    def shown(self) -> str:
        """The URL as far as it may be shown: without user, password and options."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def redact(self, message: str) -> str:
        """A message without the password."""
        for secret in filter(None, (self.password, *self._secrets_of_url())):
            for form in (secret, quote(secret), quote(secret, safe=""), repr(secret)[1:-1]):
                message = message.replace(form, "***")
        return message

    def _secrets_of_url(self) -> list[str]:
        parts = urlsplit(self.url)
        found = [unquote(parts.password)] if parts.password else []
        return found + [value for name, value in parse_qsl(parts.query) if _SECRET in name.lower()]
