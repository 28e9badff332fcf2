"""How rows are written into a database and wait for their decision: settings and what goes together."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from onceward.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

MODES: Final = ("auto", "insert", "upsert")


class CommitPath(StrEnum):
    """How rows wait for their decision."""

    AUTO = "auto"
    PREPARED = "prepared"
    STAGING = "staging"


def key_columns(key: Sequence[str] | str | None) -> tuple[str, ...]:
    """The key's columns.

    Raises:
        ConfigurationError: One is empty or repeated.
    """
    if key is None:
        return ()
    columns = (key,) if isinstance(key, str) else tuple(key)
    if len(set(columns)) != len(columns) or not all(columns):
        raise ConfigurationError(f"key {list(columns)} has an empty or repeated column")
    return columns


def write_mode(mode: str, key: tuple[str, ...], modes: tuple[str, ...] = MODES) -> str:
    """What is written: "insert" or "upsert".

    Raises:
        ConfigurationError: The mode is none of `modes`, or contradicts the key.
    """
    if mode not in modes:
        raise ConfigurationError(f"mode {mode!r} is unknown: give one of {', '.join(modes)}")
    if mode == "upsert" and not key:
        raise ConfigurationError("mode 'upsert' needs key: the columns of a unique index of the table")
    if mode == "insert" and key:
        raise ConfigurationError("mode 'insert' takes no key: leave it out, or say mode='upsert'")
    return "upsert" if key else "insert"


def commit_path(commit: str) -> CommitPath:
    """How rows wait, as asked for.

    Raises:
        ConfigurationError: No such way.
    """
    choices = [str(path) for path in CommitPath]
    if commit not in choices:
        raise ConfigurationError(f"commit {commit!r} is unknown: give one of {', '.join(choices)}")
    return CommitPath(commit)


def positive(name: str, value: float) -> float:
    """`value`, if it is above zero.

    Raises:
        ConfigurationError: It is not.
    """
    if not value > 0:
        raise ConfigurationError(f"{name} is {value}: it must be above 0")
    return value


def columns_in(text: str) -> list[str]:
    """Columns between commas, as an option gives them."""
    return [column.strip() for column in text.split(",")]
