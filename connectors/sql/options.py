"""A sink's settings: reading them from Spark's options, and what goes together."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ...core.errors import ConfigurationError
from ..options import Option, flag, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MODES: Final = ("auto", "insert", "upsert")


class CommitPath(StrEnum):
    """How rows wait for their decision."""

    AUTO = "auto"
    PREPARED = "prepared"
    STAGING = "staging"


def key_columns(key: Sequence[str] | str | None) -> tuple[str, ...]:
    """The key's columns."""
    if key is None:
        return ()
    columns = (key,) if isinstance(key, str) else tuple(key)
    if len(set(columns)) != len(columns) or not all(columns):
        raise ConfigurationError(f"key {list(columns)} has an empty or repeated column")
    return columns


def write_mode(mode: str, key: tuple[str, ...]) -> str:
    """What is written: "insert" or "upsert"."""
    if mode not in _MODES:
        raise ConfigurationError(f"mode {mode!r} is unknown: give one of {', '.join(_MODES)}")
    if mode == "upsert" and not key:
        raise ConfigurationError("mode 'upsert' needs key: the columns of a unique index of the table")
    if mode == "insert" and key:
        raise ConfigurationError("mode 'insert' takes no key: leave it out, or say mode='upsert'")
    return "upsert" if key else "insert"


def commit_path(commit: str) -> CommitPath:
    """How rows wait, as asked for."""
    choices = [str(path) for path in CommitPath]
    if commit not in choices:
        raise ConfigurationError(f"commit {commit!r} is unknown: give one of {', '.join(choices)}")
    return CommitPath(commit)


def positive(name: str, value: float) -> float:
    """`value`, if it is above zero."""
    if not value > 0:
        raise ConfigurationError(f"{name} is {value}: it must be above 0")
    return value


def read_sql_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of SqlAlchemySink from options: any case; `dbtable` (or `table`); `key` as columns between commas.

    Raises:
        ConfigurationError: An option is unknown, missing or not readable.
    """
    arguments = read_options("an SQLAlchemy sink", options, OPTIONS)
    if "table" not in arguments:
        raise ConfigurationError("an SQLAlchemy sink needs the options ['dbtable']")
    return {"name": "sql", **arguments}


def _columns(text: str) -> list[str]:
    return [column.strip() for column in text.split(",")]


OPTIONS: Final = (
    Option("url", "url", required=True),
    Option("dbtable", "table"),
    Option("table", "table"),
    Option("name", "name"),
    Option("mode", "mode"),
    Option("key", "key", _columns),
    Option("createTable", "create_table", flag),
    Option("commit", "commit"),
    Option("lockTimeout", "lock_timeout", float),
    Option("answerWithin", "answer_within", float),
    Option("ledgerSchema", "ledger_schema"),
    Option("ledgerEpochs", "ledger_epochs", int),
    Option("parallelism", "parallelism", int),
)
