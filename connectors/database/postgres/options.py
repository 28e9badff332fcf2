"""PostgresSink's settings: reading them from Spark's options, and what goes together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import Option, flag, read_options

from ..modes import MODES, CommitPath, columns_in, commit_path

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL_MODES: Final = (*MODES, str(CommitPath.PREPARED), str(CommitPath.STAGING))
"""The last two are short for `auto` with that `commit`."""

OPTIONS: Final = (
    Option("dsn", "dsn", required=True),
    Option("dbtable", "table"),
    Option("table", "table"),
    Option("name", "name"),
    Option("mode", "mode"),
    Option("key", "key", columns_in),
    Option("changeColumn", "change_column"),
    Option("createTable", "create_table", flag),
    Option("commit", "commit"),
    Option("lockTimeout", "lock_timeout", float),
    Option("answerWithin", "answer_within", float),
    Option("ledgerSchema", "ledger_schema"),
    Option("ledgerEpochs", "ledger_epochs", int),
    Option("parallelism", "parallelism", int),
)


def checked_change_column(change: str | None, key: tuple[str, ...]) -> str:
    """The column that says which rows delete, or nothing.

    Raises:
        ConfigurationError: There is no key to delete by, or it is a part of it.
    """
    if change is None:
        return ""
    if not key or not change or change in key:
        raise ConfigurationError(f"change_column {change!r} needs a key that it is no part of: it deletes by key")
    return change


def commit_mode(mode: str, commit: str) -> CommitPath:
    """How rows wait for their decision, as asked for: mode='staging' says it too.

    Raises:
        ConfigurationError: No such way, or the two contradict each other.
    """
    path = commit_path(commit)
    if mode in MODES:
        return path
    if path not in (CommitPath.AUTO, mode):
        raise ConfigurationError(f"mode {mode!r} contradicts commit {commit!r}")
    return CommitPath(mode)


def read_postgres_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of PostgresSink from options: any case; `dbtable` (or `table`); `key` as columns between commas.

    Raises:
        ConfigurationError: An option is unknown, missing or not readable.
    """
    arguments = read_options("a PostgreSQL sink", options, OPTIONS)
    if "table" not in arguments:
        raise ConfigurationError("a PostgreSQL sink needs the options ['dbtable']")
    return {"name": "postgres", **arguments}
