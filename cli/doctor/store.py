"""Checks of the decision log's store, by reading only: a diagnosis changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from onceward.core.errors import NoDecisionLogError, OncewardError

from ..operate.logs import open_log
from .finding import Finding, failed, ok, skipped, warning

if TYPE_CHECKING:
    from onceward.core.log import LogView

_NAME = "decision log"
_ON_THIS_MACHINE = (
    "fine while the driver always runs on this machine only; else use a database, an object store or a shared folder"
)


def check_store(url: str | None, pipeline: str | None) -> Finding:
    """Whether the store can be read, what its log says, and whether other machines see it.

    Args:
        url: Of the store, or the checkpoint folder; None: skipped.
        pipeline: Whose log; a folder tells it by itself.
    """
    if url is None:
        return skipped(_NAME, "give --store (or the checkpoint folder) to check it")
    parts = urlsplit(url)
    folder = Path(unquote(parts.path)) if parts.scheme in ("", "file") else None
    if folder is None and pipeline is None:
        return skipped(_NAME, "a database or bucket holds the logs of several pipelines: give --pipeline too")
    local = parts.scheme == "sqlite" or (folder is not None and "shared=true" not in parts.query)
    try:
        log = open_log(url, pipeline)
        found, local = f"{log.store.describe()}: pipeline {log.pipeline}, {_progress(log.view)}", not log.store.shared
    except NoDecisionLogError as error:
        obstacle = _obstacle(folder) if folder is not None else ""
        if obstacle:
            return failed(_NAME, obstacle, "make it writable for the driver, or choose another store")
        found = f"no decision log yet ({error}): the first start makes it"
    except OncewardError as error:
        return failed(_NAME, str(error), "make it reachable for the driver, or choose another store")
    return warning(_NAME, found, _ON_THIS_MACHINE) if local else ok(_NAME, found)


def _progress(view: LogView) -> str:
    newest = f"newest decided epoch {view.decided}" if view.newest is not None else "nothing decided"
    return f"{newest}, which waits for its commit" if view.undone is not None else newest


def _obstacle(folder: Path) -> str:
    """What keeps the driver from making this folder."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"
