"""Keeping secrets out of whatever a person may read: messages, logs, reprs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable

HIDDEN: Final = "***"
_NAMES: Final = re.compile(r"passw|secret|token", re.IGNORECASE)
_LONG: Final = 6


def is_secret_name(name: str) -> bool:
    """Whether the value of a setting of this name must not be shown."""
    return _NAMES.search(name) is not None


def redact(message: str, secrets: Iterable[str]) -> str:
    """The message without these secrets, in whatever form a library may show them: percent-encoded, escaped.

    A short one is replaced only as a word of its own: inside other words it would show by what is missing.
    """
    forms = {form for s in secrets if s for form in (s, quote(s), quote(s, safe=""), repr(s)[1:-1])}
    for form in sorted(forms, key=len, reverse=True):
        pattern = re.escape(form) if len(form) >= _LONG else rf"(?<!\w){re.escape(form)}(?!\w)"
        message = re.sub(pattern, HIDDEN, message)
    return message
