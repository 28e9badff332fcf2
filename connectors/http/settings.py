"""Where requests go and who sends them. What may be a secret is shown nowhere.

A secret may be in any header, in the URL's query, and in its path (as those of chat webhooks are): of the URL only the
origin is shown, of the headers only the names.
"""

from __future__ import annotations

import base64
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx

from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import check_seconds
from onceward.core.kit.secrets import redact

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?")
_OURS: Final = frozenset({"content-type", "content-length", "transfer-encoding", "connection", "accept-encoding"})
_SECRET_LENGTH: Final = 4
"""Shorter ones are found in any text."""


@dataclass(frozen=True)
class HttpSettings:
    """Settings of all requests of a sink; hashable and picklable.

    Attributes:
        url: Where to.
        headers: Of each request, the one of authentication among them.
        timeout: Seconds to wait for each piece of an answer.
        connect_timeout: Seconds to wait for a connection.
        ca_file: PEM file of the authorities to trust, instead of the usual ones.
        client_cert: PEM file of the own certificate.
        client_key: PEM file of its key, if it is not in client_cert.
    """

    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout: float = 30.0
    connect_timeout: float = 10.0
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None

    def __post_init__(self) -> None:
        _check_url(self.url)
        _check_headers(self.headers)
        for name in ("timeout", "connect_timeout"):
            check_seconds(name, getattr(self, name))
        if self.client_key is not None and self.client_cert is None:
            raise ConfigurationError("client_key needs client_cert")

    @property
    def shown(self) -> str:
        """The URL, as far as it may be shown."""
        return shown(self.url)

    def headers_beside(self, others: Collection[str]) -> dict[str, str]:
        """The headers, without those of other names, in any case."""
        taken = {name.lower() for name in others}
        return {name: value for name, value in self.headers if name.lower() not in taken}

    def redact(self, message: str) -> str:
        """A message without the secrets."""
        parts = urlsplit(self.url)
        secrets = {parts.query, *(value for _, value in parse_qsl(parts.query))}
        secrets |= {parts.path} | {piece for piece in parts.path.split("/") if len(piece) >= 4 * _SECRET_LENGTH}
        for _, value in self.headers:
            secrets |= {value, value.rpartition(" ")[2], _decoded(value)}
        secrets |= {unquote(secret) for secret in secrets}
        return redact(message, (secret for secret in secrets if len(secret) >= _SECRET_LENGTH))

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context; None for the usual one.

        Raises:
            ConfigurationError: A file cannot be read.
        """
        if self.ca_file is None and self.client_cert is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.client_cert is not None:
                context.load_cert_chain(self.client_cert, self.client_key)
        except OSError as error:  # ssl.SSLError is one
            files = [name for name in (self.ca_file, self.client_cert, self.client_key) if name]
            raise ConfigurationError(f"cannot read the TLS files {files}: {error}") from error
        return context


def shown(url: str) -> str:
    """A URL as far as it may be shown: scheme, host, port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/" + (
        "…" if parts.path.strip("/") or parts.query else ""
    )


def with_authentication(
    headers: Mapping[str, str], username: str | None, password: str | None, token: str | None
) -> tuple[tuple[str, str], ...]:
    """Headers and, at their end, that of authentication: Basic (RFC 7617) or Bearer (RFC 6750).

    Raises:
        ConfigurationError: They contradict one another.
    """
    ways = [token is not None, username is not None, any(name.lower() == "authorization" for name in headers)]
    if sum(ways) > 1:
        raise ConfigurationError("give one of token, username and password, and a header Authorization")
    if (username is None) is not (password is None):
        raise ConfigurationError("username and password go together")
    given = tuple(headers.items())
    if token is not None:
        return (*given, ("Authorization", f"Bearer {token}"))
    if username is not None:
        if ":" in username:
            raise ConfigurationError("a username of Basic authentication has no colon")
        return (*given, ("Authorization", "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()))
    return given


def _decoded(authorization: str) -> str:
    """The password in a value of Basic authentication, else nothing."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value).decode().partition(":")[2]
    except ValueError:
        return ""


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigurationError("url is not a URL") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError("url must begin with http:// or https:// and name a host")
    if "@" in parts.netloc:
        raise ConfigurationError("url holds a user or password: give username and password, or token, apart")
    if parts.fragment:
        raise ConfigurationError("url holds a fragment (#…), which is never sent")
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in url):  # noqa: PLR2004 - ASCII's controls
        raise ConfigurationError("url holds blanks or control characters")
    _check_host(url)


def _check_host(url: str) -> None:
    """What httpx, and Python's look-up of a name, would refuse only when a request is sent."""
    try:
        sent = httpx.URL(url)
        _ = sent.host
        sent.raw_host.decode("ascii").encode("idna")
    except (httpx.InvalidURL, UnicodeError):
        raise ConfigurationError(
            "url is not one that can be asked for: its host has an empty label, one of more than 63 characters, or "
            "characters that no name has; or an address is none; or it is too long"
        ) from None


def _check_headers(headers: tuple[tuple[str, str], ...]) -> None:
    for name, value in headers:
        if not _TOKEN.fullmatch(name):
            raise ConfigurationError(f"{name!r} is no name of a header")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ConfigurationError(f"header {name} has a value that is empty or holds characters beyond ASCII's")
        if name.lower() in _OURS:
            raise ConfigurationError(f"header {name} is not yours to give")
