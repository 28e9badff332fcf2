"""One client for each process and settings: it keeps connections alive, and knows when it was told to come again."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import httpx

from onceward.core.errors import ConfigurationError, RetryableSinkError, SinkError
from onceward.core.kit.processwide import PerProcess

from .answers import Answer, seconds_to_wait
from .settings import HttpSettings, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_READ: Final = 65536
"""Bytes of an answer's body that are read: enough for a connection to be used again after a usual answer."""
_KEPT: Final = 300
"""Characters of it that are kept for messages."""
_IDLE_SECONDS: Final = 4.0
"""Servers close idle connections, some after five seconds: a request on such a one fails."""


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
