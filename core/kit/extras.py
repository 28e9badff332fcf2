"""Optional dependencies: which extra to install if a package is not there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import MissingExtraError, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def needing(extras: str) -> Iterator[None]:
    """Name the extras to install if an import in this block fails; none if it needs none of onceward's.

    Raises:
        MissingExtraError: It is not.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ImportError as error:
        what = f"{error.name} is needed" if error.name else " ".join(text_of(error).split())  # such as a C library
        advice = f": pip install 'onceward[{extras}]'" if extras else ""
        raise MissingExtraError(f"{what}{advice}", name=error.name) from error
