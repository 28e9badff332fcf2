"""Connection strings, and keeping their secrets out of whatever a person may read."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onceward.core.errors import ConfigurationError

_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret")
_LONG_SECRET: Final = 6
_DEFAULTS: Final[dict[str, str]] = {
    "application_name": "onceward",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""libpq's own defaults wait two hours for a server that vanished from the network."""


class Dsn:
    """A PostgreSQL connection string (keywords or URI) that shows itself without its secrets.

    Args:
        text: As psycopg and libpq take it, for example `host=db dbname=shop user=writer` or
            `postgresql://writer@db/shop`. Better without a password: libpq reads PGPASSWORD and ~/.pgpass.

    Raises:
        ConfigurationError: Not a connection string; the message never repeats it.
    """

    __slots__ = ("_parameters", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._parameters = _parse(text)

    def parameters(self) -> dict[str, Any]:
        """What to connect with, secrets included: the user's settings over patient but finite defaults.

        The encoding is not the user's to choose: Arrow's text is UTF-8, and is sent as it is.
        """
        several_hosts = "," in str(self._parameters.get("host", ""))
        primary = {"target_session_attrs": "primary"} if several_hosts else {}
        return {**_DEFAULTS, **primary, **self._parameters, "client_encoding": "UTF8"}

    def secret_text(self) -> str:
        """The string as it was given, secrets included; for pickling and pool keys only."""
        return self._text

    def redact(self, message: str) -> str:
        """`message` with every secret of this connection string replaced by ***."""
        for key in _SECRETS:
            secret = self._parameters.get(key)
            if secret:
                for form in {str(secret), quote(str(secret)), quote(str(secret), safe="")}:
                    # A short one only as a word of its own: inside other words it would show by what is missing.
                    pattern = re.escape(form) if len(form) >= _LONG_SECRET else rf"(?<!\w){re.escape(form)}(?!\w)"
                    message = re.sub(pattern, "***", message)
        return message

    def __str__(self) -> str:
        shown = {key: value for key, value in self._parameters.items() if key not in _SECRETS}
        return make_conninfo("", **shown)

    def __repr__(self) -> str:
        return f"Dsn({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dsn) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[type[Dsn], tuple[str]]:
        return (Dsn, (self._text,))


def _parse(text: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(text))
    except psycopg.Error:
        # libpq's message quotes pieces of the string, which may be pieces of a password
        raise ConfigurationError(
            "dsn is not a PostgreSQL connection string: give 'host=… dbname=… user=…' or 'postgresql://user@host/db' "
            "(special characters in a URI's password percent-encoded)"
        ) from None
