"""Where local services keep their state, and where fetched programs are cached."""

from __future__ import annotations

import os
from pathlib import Path


def state_home(home: str | Path | None = None) -> Path:
    """The folder that holds the state of one set of services.

    Args:
        home: Folder asked for; default is the environment's ONCEWARD_DEV_HOME, then `.run` in the current folder.
    """
    return Path(home or os.environ.get("ONCEWARD_DEV_HOME") or ".run").expanduser().absolute()


def cache_home() -> Path:
    """The folder for fetched programs: ONCEWARD_CACHE, else `onceward` in the user's cache folder."""
    chosen = os.environ.get("ONCEWARD_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "onceward"
