"""Keeping secrets out of whatever a person may read: messages, logs, reprs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

HIDDEN: Final = "***"
_NAMES: Final = re.compile(r"passw|secret|token", re.IGNORECASE)
_LONG: Final = 6
_USER_INFO: Final = re.compile(r"(?<=://)([^:/?#]*):.*@")
_PARAMETER: Final = re.compile(r"(?<=[?&])([^=&]*)=([^&]*)")


def is_secret_name(name: str) -> bool:
    """Whether the value of a setting of this name must not be shown."""
    return _NAMES.search(name) is not None


def shown_url(url: str) -> str:
    """A URL without the password before its host, and without the values of parameters that are called secrets."""

    def hidden(found: re.Match[str]) -> str:
        return f"{found[1]}={HIDDEN}" if is_secret_name(found[1]) else found[0]

    return _PARAMETER.sub(hidden, _USER_INFO.sub(rf"\1:{HIDDEN}@", url))


def refuse_login(url: str) -> None:
    """Refuse a bucket's URL with a password: it would be taken for a part of the bucket's name, and shown."""
    if shown_url(url) != url:
        raise ConfigurationError(
            f"{shown_url(url)} holds a password, and no object store reads it there: give the credentials to fsspec, "
            "for example in the environment (FSSPEC_S3_KEY, FSSPEC_S3_SECRET)"
        )


def redact(message: str, secrets: Iterable[str]) -> str:
    """The message without these secrets, in whatever form a library may show them: percent-encoded, escaped.

    A short secret is replaced only where it is a whole word: cut out of another one, it could be guessed from the rest.
    """
    forms = {form for s in secrets if s for form in (s, quote(s), quote(s, safe=""), repr(s)[1:-1])}
    for form in sorted(forms, key=len, reverse=True):
        pattern = re.escape(form) if len(form) >= _LONG else rf"(?<!\w){re.escape(form)}(?!\w)"
        message = re.sub(pattern, HIDDEN, message)
    return message
