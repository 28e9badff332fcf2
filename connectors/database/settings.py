"""What a sink is told: how rows are written and wait for their decision, what goes together, and Spark's options."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import arguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class CommitPath(StrEnum):
    """How rows wait for their decision."""

    AUTO = "auto"
    PREPARED = "prepared"
    STAGING = "staging"


MODES: Final = ("auto", "insert", "upsert")
COMMIT_MODES: Final = (str(CommitPath.PREPARED), str(CommitPath.STAGING))
"""Short for `auto` with that `commit`."""


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


def commit_mode(mode: str, commit: str) -> CommitPath:
    """How rows wait, as asked for: by `commit`, or by a mode out of COMMIT_MODES.

    Raises:
        ConfigurationError: No such way, or the two contradict each other.
    """
    choices = [str(path) for path in CommitPath]
    if commit not in choices:
        raise ConfigurationError(f"commit {commit!r} is unknown: give one of {', '.join(choices)}")
    if mode not in COMMIT_MODES:
        return CommitPath(commit)
    if commit not in (CommitPath.AUTO, mode):
        raise ConfigurationError(f"mode {mode!r} contradicts commit {commit!r}")
    return CommitPath(mode)


def checked_change(change: str | None, key: tuple[str, ...]) -> str:
    """The column that says which rows delete, or nothing.

    Raises:
        ConfigurationError: There is no key to delete by, or it is a part of it.
    """
    if change is None:
        return ""
    if not key or not change or change in key:
        raise ConfigurationError(f"change_column {change!r} needs a key that it is no part of: it deletes by key")
    return change


def positive(name: str, value: float) -> float:
    """`value`, if it is above zero.

    Raises:
        ConfigurationError: It is not.
    """
    if not value > 0:
        raise ConfigurationError(f"{name} is {value}: it must be above 0")
    return value


def read_sink_options(make: type, name: str, options: Mapping[str, str]) -> dict[str, Any]:
    """A sink's arguments from options: any case; `dbtable` or `table`; `key` as columns between commas.

    Raises:
        ConfigurationError: An option is unknown, missing or not readable.
    """
    return arguments(make, {"name": name, **options}, aliases={"dbtable": "table", "table": "table"})
