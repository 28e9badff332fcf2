"""Optional dependencies: which extra to install if a package is not there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def needing(extras: str) -> Iterator[None]:
    """Name the extras to install if an import in this block fails; none if it needs none of onceward's.

    Raises:
        ConfigurationError: It is not.
    """
    try:
        yield
    except ImportError as error:
        what = f"{error.name} is needed" if error.name else " ".join(str(error).split())  # such as a C library
        advice = f": pip install 'onceward[{extras}]'" if extras else ""
        raise ConfigurationError(f"{what}{advice}") from error
