"""Find and read a pipeline's decision log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ...core.errors import ConfigurationError
from ...core.log import open_store, read

if TYPE_CHECKING:
    from ...core.log import LogStore, LogView

_INSIDE = "onceward"
"""Folder of the log in a Spark checkpoint."""


@dataclass(frozen=True)
class Log:
    """A decision log as it was when it was read.

    Attributes:
        pipeline: Whose it is.
        store: Where it is.
        view: What it said.
    """

    pipeline: str
    store: LogStore
    view: LogView


def open_log(url: str, pipeline: str | None = None) -> Log:
    """Read a decision log; nothing is made or changed.

    Args:
        url: Of the store, as for open_store, or a Spark checkpoint folder.
        pipeline: Its name; a directory tells it by itself.

    Raises:
        ConfigurationError: There is no decision log, or it is another pipeline's.
        StoreError: The store did not answer.
        LogDamagedError: An entry is damaged or missing.
    """
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        store = open_store(f"{_folder(unquote(parts.path) if parts.scheme else url)}")
    elif pipeline is None:
        raise ConfigurationError(f"{parts.scheme}:// holds the logs of several pipelines: name one with --pipeline")
    else:
        store = _existing(url, pipeline)
    view = read(store)
    owner = next((entry.pipeline for _, entry in view.positions), None)
    if owner is None:
        raise ConfigurationError(f"{store.describe()} has no decision log{f' of {pipeline}' if pipeline else ''}")
    if pipeline not in (None, owner):
        raise ConfigurationError(f"the decision log in {store.describe()} belongs to {owner!r}, not to {pipeline!r}")
    return Log(owner, store, view)


def _folder(path: str) -> Path:
    """Of a directory store, which opening would make if it was not there."""
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigurationError(f"no such folder: {folder}")
    return folder / _INSIDE if (folder / _INSIDE).is_dir() else folder


def _existing(url: str, pipeline: str) -> LogStore:
    parts = urlsplit(url)
    if parts.scheme.split("+")[0] == "sqlite" and not Path(parts.path.removeprefix("/")).exists():
        raise ConfigurationError(f"no such file: {parts.path.removeprefix('/')}")
    return open_store(url, pipeline=pipeline)
