"""Where requests go and who sends them, one client for each process and settings, and what an answer means.

A secret may be in any header, in the URL's query, and in its path (as those of chat webhooks are): of the URL only the
origin is shown, of the headers only the names.

What an answer says of a delivery is a pure function of its status. RFC 9110 (HTTP Semantics), sections 15 and 10.2.3;
425 is RFC 8470's, 429 is RFC 6585's. 409 is what a server answers to a key whose first request it is still at, 422 to a
key that came with another payload (draft-ietf-httpapi-idempotency-key-header-07, section 2.7).
"""

from __future__ import annotations

import base64
import re
import socket
import ssl
import threading
import time
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urljoin, urlsplit

import httpx

from onceward.core.errors import ConfigurationError, RetryableSinkError, SinkError, named_text_of, text_of
from onceward.core.kit.processwide import PerProcess
from onceward.core.kit.secrets import redact
from onceward.core.kit.text_options import check_seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?")
_OURS: Final = frozenset({"content-type", "content-length", "transfer-encoding", "connection", "accept-encoding"})
_SECRET_LENGTH: Final = 4
"""Shorter ones are found in any text."""
_READ: Final = 65536
"""Bytes of an answer's body that are read: enough for a connection to be used again after a usual answer."""
_KEPT: Final = 300
"""Characters of it that are kept for messages."""
_IDLE_SECONDS: Final = 4.0
"""Servers close idle connections, some after five seconds: a request on such a one fails."""
_SUCCESS: Final = frozenset(range(200, 300)) - {206, 207}
"""207 (RFC 4918) gives each part of a request a status of its own, so some rows may have been refused, unsaid by it; a
server that answers 206 took a delivery for a question."""
_LATER: Final = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses of what may pass by itself."""


@dataclass(frozen=True)
class HttpSettings:
    """Settings of all requests of a sink, which HttpSink describes; hashable and picklable."""

    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout: float = 30.0
    connect_timeout: float = 10.0
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None

    def __post_init__(self) -> None:
        _check_url(self.url)
        for name, value in self.headers:
            if not _TOKEN.fullmatch(name):
                raise ConfigurationError(f"headers: {name!r} is not a valid header name")
            if not isinstance(value, str) or not _VALUE.fullmatch(value):
                raise ConfigurationError(f"header {name} has a value that is empty or not printable ASCII")
            if name.lower() in _OURS:
                raise ConfigurationError(f"header {name} is set by the sink: remove it from headers")
        check_seconds("timeout", self.timeout)
        check_seconds("connect_timeout", self.connect_timeout)
        if self.client_key is not None and self.client_cert is None:
            raise ConfigurationError("client_key needs client_cert")

    @property
    def shown(self) -> str:
        """The URL, as far as it may be shown."""
        return _shown(self.url)

    def redact(self, message: str) -> str:
        """Return a message in which the secrets are replaced by ***."""
        parts = urlsplit(self.url)
        secrets = {parts.query, *(value for _, value in parse_qsl(parts.query))}
        secrets |= {parts.path} | {piece for piece in parts.path.split("/") if len(piece) >= 4 * _SECRET_LENGTH}
        for _, value in self.headers:
            secrets |= {value, value.rpartition(" ")[2], _basic_password(value)}
        secrets |= {unquote(secret) for secret in secrets}
        return redact(message, (secret for secret in secrets if len(secret) >= _SECRET_LENGTH))

    def tls(self) -> ssl.SSLContext | bool:
        """Return the TLS context; True for the usual one.

        Raises:
            ConfigurationError: A file cannot be read.
        """
        if self.ca_file is None and self.client_cert is None:
            return True
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.client_cert is not None:
                context.load_cert_chain(self.client_cert, self.client_key)
        except OSError as error:  # ssl.SSLError is one
            files = [name for name in (self.ca_file, self.client_cert, self.client_key) if name]
            raise ConfigurationError(f"cannot read the TLS files {files}: {text_of(error)}") from error
        return context


def with_authentication(
    headers: Mapping[str, str], username: str | None, password: str | None, token: str | None
) -> tuple[tuple[str, str], ...]:
    """Add the header of authentication at the end: Basic (RFC 7617) or Bearer (RFC 6750).

    It is a header, and not an `httpx.Auth`, which makes one only when a request is sent: the settings of a sink must
    know each of its secrets, to keep them out of messages.

    Raises:
        ConfigurationError: They contradict one another.
    """
    ways = [token is not None, username is not None, any(name.lower() == "authorization" for name in headers)]
    if sum(ways) > 1:
        raise ConfigurationError(
            "authentication is given twice: give one of token, username with password, and a header Authorization"
        )
    if (username is None) is not (password is None):
        raise ConfigurationError("only one of username and password is given: give both or neither")
    pairs = tuple(headers.items())
    if token is not None:
        return (*pairs, ("Authorization", f"Bearer {token}"))
    if username is not None:
        if ":" in username:
            raise ConfigurationError("username contains a colon, which Basic authentication does not allow")
        return (*pairs, ("Authorization", "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()))
    return pairs


def _basic_password(authorization: str) -> str:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value).decode().partition(":")[2]
    except ValueError:
        return ""


def _shown(url: str) -> str:
    parts = urlsplit(url)
    more = "…" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{more}"


def _check_url(url: str) -> None:
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in url):  # noqa: PLR2004 - ASCII's controls
        raise ConfigurationError("url contains spaces or control characters")  # which httpx would percent-encode
    try:  # what httpx, and Python's look-up of a name, would refuse only when a request is sent
        parts = httpx.URL(url)
        host, netloc = parts.host, urlsplit(url).netloc
        parts.raw_host.decode("ascii").encode("idna")
    except (httpx.InvalidURL, ValueError):  # UnicodeError is one
        raise ConfigurationError(
            "url is not a URL that can be requested: its port is not a number, its host has an empty label, a label of "
            "more than 63 characters or characters that are not allowed in host names, or is not a valid address; or "
            "the URL is too long"
        ) from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError("url must begin with http:// or https:// and name a host")
    if "@" in netloc:
        raise ConfigurationError("url contains a user or password: give username and password, or token, separately")
    if parts.fragment:
        raise ConfigurationError("url holds a fragment (#…), which is never sent")


class HttpAnswer(NamedTuple):
    """An answer: its status, the seconds to wait before the next request if it names them, its body's beginning.

    `location` is where it redirects to, as far as that may be shown.
    """

    status: int
    retry_after: float | None
    text: str
    location: str = ""


def error_class_of(status: int, also_later: Collection[int] = ()) -> type[SinkError] | None:
    """Return the error class for a status: None on success, RetryableSinkError if a retry may succeed, else SinkError.

    Args:
        status: Of the answer.
        also_later: Statuses that this server gives to what may pass by itself.
    """
    if status in _SUCCESS:
        return None
    return RetryableSinkError if status in _LATER or status in also_later else SinkError


def _decoded(body: bytes, encoding: str) -> bytes:
    """Return the beginning of a body that was compressed though nobody asked for it; empty if it cannot be read."""
    if encoding.strip().lower() in {"", "identity"}:
        return body
    if encoding.strip().lower() not in {"gzip", "x-gzip", "deflate"}:
        return b""
    for window in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):  # gzip or zlib, by their heads; what some call deflate
        with suppress(zlib.error):
            return zlib.decompressobj(window).decompress(body, _READ)
    return b""


def seconds_to_wait(retry_after: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds that a header Retry-After gives, as a number or a date; None if it cannot be read."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # the latter of a zone that is years away
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())


class _Url(httpx.URL):
    """A URL that httpx's own log lines show without its secrets."""

    def __str__(self) -> str:
        return _shown(super().__str__())


class _Connection:
    """A client with one connection, whose answer can be waited for no longer than `timeout`.

    httpx limits each read, and a server that sends a byte now and then is always in time.
    """

    def __init__(self, settings: HttpSettings, tls: ssl.SSLContext) -> None:
        self._seconds = settings.timeout
        self._timeout = httpx.Timeout(settings.timeout, connect=settings.connect_timeout)
        limits = httpx.Limits(max_connections=1, keepalive_expiry=_IDLE_SECONDS)
        self._client = httpx.Client(verify=tls, timeout=self._timeout, limits=limits)
        self._stream: Any = None
        self._timer: threading.Timer | None = None
        self.late = False

    def send(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the answer, whose body has not been read."""
        self.late = False
        request.extensions["timeout"] = self._timeout.as_dict()
        request.extensions["trace"] = self._observe
        try:
            return self._client.send(request, stream=True)
        finally:
            self._stop_timer()

    def _observe(self, event: str, info: Mapping[str, Any]) -> None:
        """Remember the connection, and limit the time until the headers are complete; see httpx's trace extension."""
        if hasattr(info.get("return_value"), "get_extra_info"):
            self._stream = info["return_value"]
        if event.endswith("receive_response_headers.started"):
            self._stop_timer()
            self._timer = threading.Timer(self._seconds, self._cut)
            self._timer.daemon = True
            self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut(self) -> None:
        self.late = True
        with suppress(OSError):  # not closed, because its number could be another file's by the next read
            self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


class HttpClient:
    """A client that keeps connections alive, and obeys Retry-After. Thread-safe: each request has a connection alone.

    Args:
        settings: Where to, and who we are.

    Raises:
        ConfigurationError: A TLS file cannot be read, or the environment names a proxy that cannot be used.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        tls = settings.tls()
        self._tls = httpx.create_ssl_context() if isinstance(tls, bool) else tls
        self._not_before = 0.0
        self._lock = threading.Lock()
        self._idle = [self._connection()]

    def _connection(self) -> _Connection:
        try:
            return _Connection(self._settings, self._tls)
        except (httpx.InvalidURL, ValueError, ImportError):  # its words may hold a password
            raise ConfigurationError(
                "the environment names a proxy (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY) that httpx cannot use"
            ) from None

    @contextmanager
    def _lent(self) -> Iterator[_Connection]:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._connection()
        try:
            yield connection
        finally:
            with self._lock:
                self._idle.append(connection)

    def wait(self, longest: float) -> None:
        """Wait until the server wants to be asked again, but not longer than so many seconds."""
        with self._lock:
            left = self._not_before - time.monotonic()
        if left > 0:
            time.sleep(min(left, longest))

    def request(self, method: str, headers: Mapping[str, str], content: bytes = b"") -> HttpAnswer:
        """Send a request; its answer.

        Raises:
            RetryableSinkError: No answer: it may have arrived or not.
            SinkError: It can never be sent.
        """
        url, shown = self._settings.url, self._settings.shown
        headers_ = httpx.Headers({"User-Agent": "onceward", "Accept-Encoding": "identity"})
        headers_.update(self._settings.headers)
        headers_.update(headers)
        request = httpx.Request(method, url, headers=headers_, content=content)
        request.url = _Url(url)
        with self._lent() as connection:
            try:
                response = connection.send(request)
            except httpx.RequestError as error:
                if connection.late:
                    raise RetryableSinkError(
                        f"no answer from {shown}: ReadTimeout: its headers were not complete after "
                        f"{self._settings.timeout:g} s"
                    ) from None
                raise RetryableSinkError(f"no answer from {shown}: {self._words(error)}") from None
            except (httpx.InvalidURL, UnicodeError) as error:  # of a proxy: the own URL was tried when it was given
                raise SinkError(f"cannot send to {shown}: {self._words(error)}") from None
            try:
                return self._read(response)
            finally:
                response.close()

    def _read(self, response: httpx.Response) -> HttpAnswer:
        body, until = b"", time.monotonic() + self._settings.timeout
        with suppress(httpx.HTTPError):  # the status has been said
            for piece in response.iter_raw():  # as they come: a number of bytes would be waited for
                body += piece
                if len(body) >= _READ or time.monotonic() >= until:
                    break
        decoded = _decoded(body, response.headers.get("Content-Encoding", "")).decode(errors="replace")
        text = self._settings.redact(" ".join(decoded.split()))[:_KEPT]
        seconds = None if response.is_success else seconds_to_wait(response.headers.get("Retry-After"))
        if seconds is not None or response.is_success:  # a success ends what was asked for before
            with self._lock:
                self._not_before = time.monotonic() + (seconds or 0.0)
        return HttpAnswer(response.status_code, seconds, text, self._location(response))

    def _location(self, response: httpx.Response) -> str:
        location = response.headers.get("Location", "") if response.is_redirect else ""
        try:
            return _shown(urljoin(self._settings.url, location)) if location else ""
        except ValueError:
            return ""

    def _words(self, error: Exception) -> str:
        return self._settings.redact(named_text_of(error))


clients: Final = PerProcess(HttpClient)
"""The client of this process for each settings."""
