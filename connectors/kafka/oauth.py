"""Tokens for SASL/OAUTHBEARER, the same for both clients.

librdkafka can fetch tokens itself (method oidc, unsigned tokens), but kafka-python wants a provider. Here is one
source of tokens for the three ways that are carried: a function of the user's, a token endpoint (OAuth 2.0 client
credentials, RFC 6749 section 4.4), and unsigned tokens for tests (RFC 7515, appendix A.5).
"""

from __future__ import annotations

import base64
import json
import time
import urllib.parse
import urllib.request
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceward.core.errors import ConfigurationError

from .tls import https_context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REFRESH_AT: Final = 0.8
"""Share of a token's life after which it is replaced."""
ENDPOINT_SECONDS: Final = 15.0
UNSIGNED_SECONDS: Final = 3600


class Token(NamedTuple):
    """A bearer token and when it expires, in seconds since 1970."""

    value: str
    expires: float


class TokenSource:
    """Hands out a token, made anew when most of its life is over. Not shared between threads.

    Args:
        values: Settings under librdkafka's names.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._make = _maker(values)
        self.extensions = _pairs(str(values.get("sasl.oauthbearer.extensions", "")), ",")
        self._token: Token | None = None
        self._refresh = 0.0

    def token(self) -> Token:
        """A token that is good for a while."""
        now = time.time()
        if self._token is None or now >= self._refresh:
            self._token = self._make()
            self._refresh = now + (self._token.expires - now) * REFRESH_AT
        return self._token

    def for_librdkafka(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        """An `oauth_cb` of confluent-kafka."""
        token = self.token()
        return token.value, token.expires, "", self.extensions


def token_function(given: Any) -> Callable[[str], Any]:
    """The user's function out of `oauth_cb`: itself, or `module:function`.

    Raises:
        ConfigurationError: There is no such function.
    """
    if callable(given):
        return given  # type: ignore[no-any-return]
    module, _, name = str(given).partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"oauth_cb {given!r} is not a function: give it as module:function ({error})"
        ) from error
    return found  # type: ignore[no-any-return]


def _maker(values: Mapping[str, Any]) -> Callable[[], Token]:
    if "oauth_cb" in values:
        function = token_function(values["oauth_cb"])
        config = str(values.get("sasl.oauthbearer.config", ""))
        return lambda: Token(*function(config)[:2])
    if str(values.get("sasl.oauthbearer.method", "default")).lower() == "oidc":
        return lambda: _from_endpoint(values)
    if str(values.get("enable.sasl.oauthbearer.unsecure.jwt", "false")).lower() == "true":
        return lambda: _unsigned(_pairs(str(values.get("sasl.oauthbearer.config", "")), " "))
    raise ConfigurationError(
        "sasl.mechanism OAUTHBEARER needs a source of tokens: oauth_cb, or sasl.oauthbearer.method=oidc with client "
        "id, client secret and token endpoint"
    )


def _from_endpoint(values: Mapping[str, Any]) -> Token:
    url = str(values["sasl.oauthbearer.token.endpoint.url"])
    form = {"grant_type": "client_credentials"}
    if scope := values.get("sasl.oauthbearer.scope"):
        form["scope"] = str(scope)
    pair = f"{values['sasl.oauthbearer.client.id']}:{values['sasl.oauthbearer.client.secret']}"
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked with the settings
        url,
        data=urllib.parse.urlencode(form).encode(),
        headers={"Authorization": "Basic " + base64.b64encode(pair.encode()).decode(), "Accept": "application/json"},
    )
    context = https_context(values) if url.startswith("https:") else None
    began = time.time()
    with urllib.request.urlopen(request, timeout=ENDPOINT_SECONDS, context=context) as response:  # noqa: S310
        answer = json.load(response)
    return Token(answer["access_token"], began + float(answer.get("expires_in", 60)))


def _unsigned(config: Mapping[str, str]) -> Token:
    now = time.time()
    life = float(config.get("lifeSeconds", UNSIGNED_SECONDS))
    claims = {"sub": config.get("principal", ""), "iat": now, "exp": now + life}
    if scope := config.get("scope"):
        claims["scope"] = scope
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    return Token(".".join(base64.urlsafe_b64encode(p).rstrip(b"=").decode() for p in parts) + ".", now + life)


def _pairs(text: str, separator: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(separator) if part.strip())
    return {key.strip(): value.strip() for key, _, value in pairs}
