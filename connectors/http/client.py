"""One client for each process and settings: it keeps connections alive, and knows when it was told to come again.

What an answer says of a delivery is a pure function of its status. RFC 9110 (HTTP Semantics), sections 15 and 10.2.3;
425 is RFC 8470's, 429 is RFC 6585's. 409 is what a server answers to a key whose first request it is still at, 422 to a
key that came with another payload (draft-ietf-httpapi-idempotency-key-header-07, section 2.7).
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import httpx

from onceward.core.errors import ConfigurationError, RetryableSinkError, SinkError
from onceward.core.kit.processwide import PerProcess

from .settings import HttpSettings, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_READ: Final = 65536
"""Bytes of an answer's body that are read: enough for a connection to be used again after a usual answer."""
_KEPT: Final = 300
"""Characters of it that are kept for messages."""
_IDLE_SECONDS: Final = 4.0
"""Servers close idle connections, some after five seconds: a request on such a one fails."""


LATER: Final = frozenset({408, 409, 425, 429})
"""Statuses below 500 of what may pass by itself."""
_SUCCESS: Final = range(200, 300)
_SERVER_ERROR: Final = range(500, 600)


class Verdict(StrEnum):
    """What became of a delivery."""

    TAKEN = "taken"
    LATER = "later"
    """Not known, or not yet: it is to be sent again, under the same key."""
    REFUSED = "refused"
    """It will be refused again."""


class Answer(NamedTuple):
    """An answer.

    Attributes:
        status: Of HTTP.
        retry_after: Seconds to wait before the next request, if the server says so.
        text: The beginning of its body.
    """

    status: int
    retry_after: float | None = None
    text: str = ""


def judge(status: int, also_later: Collection[int] = ()) -> Verdict:
    """What a status says.

    Args:
        status: Of the answer.
        also_later: Statuses that this server gives to what may pass by itself.
    """
    if status in _SUCCESS:
        return Verdict.TAKEN
    if status in LATER or status in _SERVER_ERROR or status in also_later:
        return Verdict.LATER
    return Verdict.REFUSED


def seconds_to_wait(retry_after: str | None, now: datetime | None = None) -> float | None:
    """Seconds out of a header Retry-After: a number of them, or a date; None if there is nothing to be read."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())


class _Url(httpx.URL):
    """A URL that httpx's own log lines show without its secrets."""

    def __str__(self) -> str:
        return shown(super().__str__())


class HttpClient:
    """Sends requests, one at a time.

    Args:
        settings: Where to, and who we are.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        tls = settings.tls() or True
        try:
            self._client = httpx.Client(
                verify=tls,
                timeout=httpx.Timeout(settings.timeout, connect=settings.connect_timeout),
                limits=httpx.Limits(max_connections=4, keepalive_expiry=_IDLE_SECONDS),
            )
        except (httpx.InvalidURL, ValueError, ImportError):  # its words may hold a password
            raise ConfigurationError(
                "the environment names a proxy (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY) that httpx cannot use"
            ) from None
        self._url = _Url(settings.url)
        self._not_before = 0.0
        self._lock = threading.Lock()

    def wait(self, longest: float) -> None:
        """Wait until the server wants to be asked again, but not longer than so many seconds."""
        with self._lock:
            left = self._not_before - time.monotonic()
        if left > 0:
            time.sleep(min(left, longest))

    def request(self, method: str, headers: Mapping[str, str], content: bytes = b"") -> Answer:
        """Send a request; its answer.

        Raises:
            RetryableSinkError: No answer: it may have arrived or not.
            SinkError: It can never be sent.
        """
        request = httpx.Request(
            method,
            self._settings.url,
            headers={"User-Agent": "onceward", **self._settings.headers_beside(headers), **headers},
            content=content,
        )
        request.url = self._url
        request.extensions["timeout"] = self._client.timeout.as_dict()
        try:
            response = self._client.send(request, stream=True)
        except httpx.RequestError as error:
            raise RetryableSinkError(f"no answer from {self._settings.shown}: {self._words(error)}") from None
        except (httpx.InvalidURL, UnicodeError) as error:  # of a proxy: the own URL was tried when it was given
            raise SinkError(f"cannot send to {self._settings.shown}: {self._words(error)}") from None
        try:
            return self._read(response)
        finally:
            response.close()

    def _read(self, response: httpx.Response) -> Answer:
        body = b""
        with suppress(httpx.HTTPError):  # the status has been said
            for piece in response.iter_raw(_READ):
                body += piece
                if len(body) >= _READ:
                    break
        text = self._settings.redact(" ".join(body.decode(errors="replace").split()))[:_KEPT]
        seconds = None if response.is_success else seconds_to_wait(response.headers.get("Retry-After"))
        if seconds is not None:
            with self._lock:
                self._not_before = time.monotonic() + seconds
        return Answer(response.status_code, seconds, text)

    def _words(self, error: Exception) -> str:
        return f"{type(error).__name__}: {self._settings.redact(str(error))}"


clients: Final = PerProcess(HttpClient)
"""The client of this process for each settings."""
