"""Warnings for whoever writes a program, at the line of the program that calls onceward."""

from __future__ import annotations

import sys
import warnings

from ..errors import OncewardWarning

_PACKAGE = __name__.partition(".")[0]


def warn(message: str, category: type[Warning] = OncewardWarning) -> None:
    """Warn of something in the calling program, at its own line.

    Args:
        message: Description of the problem, and what to do.
        category: OncewardWarning for what is probably a mistake, DeprecationWarning for a name that is to go.
    """
    warnings.warn(message, category, stacklevel=_level() + 1)


def _level() -> int:
    """Return how many frames above `warn` the newest one lies that is not onceward's; the outermost if all are."""
    frame, level = sys._getframe(2), 1  # noqa: SLF001 - warnings' own skip_file_prefixes is new in Python 3.12
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level
