"""Settings of the engine out of a TOML file and the environment. docs/engine-settings.md is their page.

    [checkpoint]                    ONCEWARD_CHECKPOINT_INTERVAL=1.0
    interval = 1.0                  ONCEWARD_RESTART_STRATEGY=none

    [restart]
    strategy = "fixed-delay"
    attempts = 3

The environment has the last word. An unknown name is an error: a setting with a typing mistake would be a default.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

TABLES: Final = ("checkpoint", "restart")


def settings(table: str, path: str | Path | None, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The values of a table: those of the file, and those of the environment in their place.

    Args:
        table: checkpoint or restart.
        path: The TOML file; None: the environment alone.
        environ: The environment; default: this process's.

    Raises:
        ConfigurationError: The file cannot be read, or has other tables.
    """
    values = _file(path).get(table, {}) if path is not None else {}
    prefix = f"ONCEWARD_{table.upper()}_"
    given = (os.environ if environ is None else environ).items()
    return values | {name[len(prefix) :].lower(): value for name, value in given if name.startswith(prefix)}


def refuse_unknown(table: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise ConfigurationError if there is a name that is not known."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigurationError(f"unknown settings in {table}: {', '.join(unknown)}. There are {', '.join(known)}")


def _file(path: str | Path) -> dict[str, dict[str, Any]]:
    try:
        found: dict[str, dict[str, Any]] = msgspec.toml.decode(Path(path).read_bytes(), type=dict[str, dict[str, Any]])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"settings {path} cannot be read: {error}") from error
    refuse_unknown(str(path), found, TABLES)
    return found
