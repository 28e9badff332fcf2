"""A sink's settings: reading them from Spark's options, and what goes together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...core.errors import ConfigurationError
from .checks import CommitPath

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MODES: Final = ("auto", "insert", "upsert", "prepared", "staging")
_TRUE: Final = {"true": True, "false": False}


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


def checked_change_column(change: str | None, key: tuple[str, ...]) -> str:
    """The column that says which rows delete, or nothing."""
    if change is None:
        return ""
    if not key or not change or change in key:
        raise ConfigurationError(f"change_column {change!r} needs a key that it is no part of: it deletes by key")
    return change


def commit_mode(mode: str, commit: str) -> CommitPath:
    """How rows wait for their decision, as asked for: mode='staging' says it too."""
    choices = [str(path) for path in CommitPath]
    if commit not in choices:
        raise ConfigurationError(f"commit {commit!r} is unknown: give one of {', '.join(choices)}")
    if mode not in choices or mode == CommitPath.AUTO:
        return CommitPath(commit)
    if commit not in (CommitPath.AUTO, mode):
        raise ConfigurationError(f"mode {mode!r} contradicts commit {commit!r}")
    return CommitPath(mode)


def positive(name: str, value: float) -> float:
    """`value`, if it is above zero."""
    if not value > 0:
        raise ConfigurationError(f"{name} is {value}: it must be above 0")
    return value


def read_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of PostgresSink from options: any case; `dbtable` for table; `key` as columns between commas.

    Raises:
        ConfigurationError: An option is unknown, missing or not readable.
    """
    given = {key.lower().replace("_", ""): value for key, value in options.items()}
    if "dbtable" in given:
        given.setdefault("table", given.pop("dbtable"))
    unknown = sorted(given.keys() - _READERS.keys())
    if unknown:
        known = sorted("dbtable" if key == "table" else key for key in _READERS)
        raise ConfigurationError(f"unknown options {unknown}: a PostgreSQL sink takes {', '.join(known)}")
    missing = [spelling for key, spelling in (("dsn", "dsn"), ("table", "dbtable")) if key not in given]
    if missing:
        raise ConfigurationError(f"option {missing[0]!r} is missing")
    arguments = {_ARGUMENTS[key]: _read(key, value) for key, value in given.items()}
    return {"name": "postgres", **arguments}


def _read(key: str, value: str) -> Any:
    try:
        return _READERS[key](value)
    except (ValueError, KeyError) as error:
        raise ConfigurationError(f"option {key!r} cannot be read from {value!r}") from error


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "name": str,
    "dsn": str,
    "table": str,
    "mode": str,
    "key": lambda text: [column.strip() for column in text.split(",")],
    "changecolumn": str,
    "createtable": lambda text: _TRUE[text.lower()],
    "commit": str,
    "locktimeout": float,
    "answerwithin": float,
    "ledgerschema": str,
    "ledgerepochs": int,
    "parallelism": int,
}
_ARGUMENTS: Final = {
    **{key: key for key in _READERS},
    "changecolumn": "change_column",
    "createtable": "create_table",
    "locktimeout": "lock_timeout",
    "answerwithin": "answer_within",
    "ledgerschema": "ledger_schema",
    "ledgerepochs": "ledger_epochs",
}
