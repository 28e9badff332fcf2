"""NAME=VALUE arguments of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """Values by name. No value is repeated in an error: it may be a password.

    Raises:
        ConfigurationError: One has no "=".
    """
    for number, pair in enumerate(given or (), 1):
        if "=" not in pair:
            raise ConfigurationError(f"{option} takes NAME=VALUE; number {number} of those given has no '='")
    return dict(pair.partition("=")[::2] for pair in given or ())
