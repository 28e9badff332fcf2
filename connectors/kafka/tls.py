"""The TLS context of the connections that librdkafka does not make."""

from __future__ import annotations

import os
import ssl
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING

from onceward.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping


class _ClosingSocket(ssl.SSLSocket):
    """Closed at once if the handshake fails; kafka-python leaves that to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        """Perform the TLS handshake."""
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except BaseException:
            self.close()
            raise


def tls_context(values: Mapping[str, str]) -> ssl.SSLContext:
    """What librdkafka does with the same `ssl.*` settings.

    Raises:
        ConfigurationError: A file cannot be read or is not what it should be; the message names the setting.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = _ClosingSocket
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
        given = ", ".join(sorted(name for name in values if name.startswith("ssl.")))
        raise ConfigurationError(f"the TLS settings ({given}) cannot be used: {error}") from error
    return context


def https_context(values: Mapping[str, str]) -> ssl.SSLContext:
    """For the token endpoint."""
    context = ssl.create_default_context()
    if "https.ca.location" in values or "https.ca.pem" in values:
        _trust(context, values.get("https.ca.location"), values.get("https.ca.pem"))
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
            context.load_cert_chain(certificate, key, values.get("ssl.key.password"))


def _as_file(stack: ExitStack, text: str | None) -> str | None:
    if not text:
        return None
    file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".pem"))  # noqa: SIM115 - made with mode 0600
    file.write(text)
    file.flush()
    return file.name
