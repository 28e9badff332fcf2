"""What proves who is who, the same for both clients: TLS contexts, and tokens for SASL/OAUTHBEARER.

librdkafka makes its own TLS connections; kafka-python's are made here from the same settings. librdkafka can fetch
tokens itself (method oidc, unsigned tokens), but kafka-python wants a provider, and has none. Here is one source of
tokens for the three ways that are carried: a function of the user's, a token endpoint (OAuth 2.0 client credentials,
RFC 6749 section 4.4), and unsigned tokens for tests (RFC 7515, appendix A.5).

The endpoint is asked with urllib: the client credentials are one request, for which the extra `kafka` needs neither
authlib nor httpx. If librdkafka asked by itself, the request would still have to be made here for kafka-python.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import tempfile
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceward.core.errors import ConfigurationError, KafkaError, named_text_of, text_of
from onceward.core.kit.secrets import shown_address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


REFRESH_AT: Final = 0.8
"""Share of a token's life after which it is replaced."""
ENDPOINT_SECONDS: Final = 15.0
UNSIGNED_SECONDS: Final = 3600
_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_NEEDED: Final = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", _ENDPOINT)


class _ClosingTlsSocket(ssl.SSLSocket):
    """Closed at once if the handshake fails; kafka-python leaves that to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except BaseException:
            self.close()
            raise


def tls_context(values: Mapping[str, str]) -> ssl.SSLContext:
    """Make the TLS context that librdkafka would make of the same `ssl.*` settings.

    Raises:
        ConfigurationError: A file cannot be read or is not what it should be; the message names the setting.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = _ClosingTlsSocket
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = values.get("ssl.endpoint.identification.algorithm", "https").lower() == "https"
    if values.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        _trust(context, values.get("ssl.ca.location"), values.get("ssl.ca.pem"))
        if revoked := values.get("ssl.crl.location"):
            context.load_verify_locations(revoked)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        if suites := values.get("ssl.cipher.suites"):
            context.set_ciphers(suites)
        _identify(context, values)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        names = ", ".join(sorted(name for name in values if name.startswith("ssl.")))
        raise ConfigurationError(f"the TLS settings ({names}) cannot be used: {text_of(error)}") from error
    return context


def _trust(context: ssl.SSLContext, location: str | None, pem: str | None) -> None:
    if pem:
        context.load_verify_locations(cadata=pem)
    elif location in (None, "", "probe"):
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    elif os.path.isdir(location):  # noqa: PTH112 - a string in, a string on
        context.load_verify_locations(capath=location)
    else:
        context.load_verify_locations(cafile=location)


def _identify(context: ssl.SSLContext, values: Mapping[str, str]) -> None:
    """Load this client's certificate; Python's ssl takes files only, so texts pass through private ones."""
    with ExitStack() as stack:
        certificate = values.get("ssl.certificate.location") or _as_file(stack, values.get("ssl.certificate.pem"))
        key = values.get("ssl.key.location") or _as_file(stack, values.get("ssl.key.pem"))
        if certificate is not None:
            # Without a function, OpenSSL would ask for the password of a locked key at the terminal, and wait.
            password = values.get("ssl.key.password")
            try:
                context.load_cert_chain(certificate, key, password or _no_password)
            except ssl.SSLError as error:
                if password is None:
                    raise
                why = f"the private key cannot be opened with this ssl.key.password ({text_of(error)})"
                raise ValueError(why) from None


def _no_password() -> str:
    raise ValueError("the private key is locked: set ssl.key.password")


def _as_file(stack: ExitStack, text: str | None) -> str | None:
    if not text:
        return None
    file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".pem"))  # noqa: SIM115 - made with mode 0600
    file.write(text)
    file.flush()
    return file.name


class Token(NamedTuple):
    """A bearer token and when it expires, in seconds since 1970."""

    value: str
    expires: float


class TokenSource:
    """Hands out a token, made anew when most of its life is over. Not shared between threads.

    Raises:
        ConfigurationError: They name no source of tokens, or not all that it needs.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._make = _maker(values)
        self.extensions = _pairs(str(values.get("sasl.oauthbearer.extensions", "")), ",")
        self._token: Token | None = None
        self._refresh = 0.0

    def token(self) -> Token:
        """Return a token that stays valid for a while; a new one is fetched when the last is close to its end.

        Raises:
            KafkaError: There is none, or the new one has expired.
        """
        now = time.time()
        if self._token is None or now >= self._refresh:
            made = self._make()
            if made.expires <= now:
                raise KafkaError(
                    f"the new token for OAUTHBEARER expired {now - made.expires:.0f} s ago: have its source make a "
                    "fresh one, or correct this machine's clock"
                )
            self._token, self._refresh = made, now + (made.expires - now) * REFRESH_AT
        return self._token

    def for_librdkafka(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        """Return a token as confluent-kafka's `oauth_cb` does."""
        token = self.token()
        return token.value, token.expires, "", self.extensions


def _function(given: Any) -> Callable[[str], Any]:
    """Return the user's function from `oauth_cb`: the function itself, or the one named by `module:function`."""
    if callable(given):
        return given  # type: ignore[no-any-return]
    module, _, name = str(given).partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"oauth_cb {given!r} is not a function: give it as module:function ({text_of(error)})"
        ) from None
    return function  # type: ignore[no-any-return]


def _maker(values: Mapping[str, Any]) -> Callable[[], Token]:
    if "oauth_cb" in values:
        function = _function(values["oauth_cb"])
        config = str(values.get("sasl.oauthbearer.config", ""))
        return lambda: _from_function(function, config)
    if str(values.get("sasl.oauthbearer.method", "default")).lower() == "oidc":
        missing = [name for name in _NEEDED if name not in values]
        if missing:
            raise ConfigurationError(f"Kafka settings for OAUTHBEARER are missing: {', '.join(missing)}")
        _check_endpoint(str(values[_ENDPOINT]))
        return lambda: _from_endpoint(values)
    if str(values.get("enable.sasl.oauthbearer.unsecure.jwt", "false")).lower() == "true":
        return lambda: _unsigned(_pairs(str(values.get("sasl.oauthbearer.config", "")), " "))
    raise ConfigurationError(
        "sasl.mechanism OAUTHBEARER needs a source of tokens: oauth_cb, or sasl.oauthbearer.method=oidc with client "
        "id, client secret and token endpoint"
    )


def _from_function(function: Callable[[str], Any], config: str) -> Token:
    try:
        value, expires, *_ = function(config)
    except Exception as error:  # noqa: BLE001 - whatever a user's function raises
        raise KafkaError(f"oauth_cb gave no token: {named_text_of(error)}") from None
    if not isinstance(value, str) or not isinstance(expires, int | float):  # not shown: they may be a secret
        raise KafkaError(
            "oauth_cb gave no token: it must return the token's text, and when it expires in seconds since 1970"
        )
    return Token(value, float(expires))


def _check_endpoint(url: str) -> None:
    """Refuse to send the client's secret over the network in the clear."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        parts = urllib.parse.SplitResult("", "", "", "", "")
    here = parts.scheme == "http" and parts.hostname in {"localhost", "127.0.0.1", "::1"}
    if not here and (parts.scheme != "https" or not parts.hostname):
        raise ConfigurationError(
            f"{_ENDPOINT} {shown_address(url)!r} is refused: the client's secret is sent there, so give an https:// "
            "URL (http:// is allowed for localhost)"
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The secret goes to the endpoint that was given, and to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _from_endpoint(values: Mapping[str, Any]) -> Token:
    url = str(values[_ENDPOINT])
    try:
        form = {"grant_type": "client_credentials"}
        if scope := values.get("sasl.oauthbearer.scope"):
            form["scope"] = str(scope)
        pair = f"{values['sasl.oauthbearer.client.id']}:{values['sasl.oauthbearer.client.secret']}"
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked with the settings
            url,
            data=urllib.parse.urlencode(form).encode(),
            headers={
                "Authorization": "Basic " + base64.b64encode(pair.encode()).decode(),
                "Accept": "application/json",
            },
        )
        context = ssl.create_default_context()
        if "https.ca.location" in values or "https.ca.pem" in values:
            _trust(context, values.get("https.ca.location"), values.get("https.ca.pem"))
        began = time.time()
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects)
        with opener.open(request, timeout=ENDPOINT_SECONDS) as response:
            answer = json.load(response)
        return Token(answer["access_token"], began + float(answer.get("expires_in", 60)))
    except KeyError:
        why = "its answer holds no access_token"
    except (OSError, ValueError, TypeError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
    raise KafkaError(f"no token from {shown_address(url)}: {why}")


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
