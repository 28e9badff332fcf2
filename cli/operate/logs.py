"""Find and read a pipeline's decision log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from onceward.core.errors import ConfigurationError, NoDecisionLogError
from onceward.core.log import open_store, read
from onceward.core.log.objects import CONDITIONAL_PUT
from onceward.core.log.store import IN_CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.core.log import LogStore, LogView

_FOLDERS = ("", "file")


@dataclass(frozen=True)
class Log:
    """A decision log.

    Attributes:
        pipeline: Whose it is.
        store: Where it is.
    """

    pipeline: str
    store: LogStore

    @property
    def view(self) -> LogView:
        """What it says now.

        Raises:
            StoreError: The store did not answer.
        """
        return read(self.store)


def open_log(url: str, pipeline: str | None = None, *, writing: bool = False) -> Log:
    """Find a decision log; nothing is made or changed.

    Args:
        url: Of the store, as for open_store, or a Spark checkpoint folder.
        pipeline: Its name; a directory tells it by itself.
        writing: It will be written to: an object store is probed first, as by open_store.

    Raises:
        NoDecisionLogError: There is none.
        ConfigurationError: The URL is not usable, or the log is another pipeline's.
        StoreError: The store did not answer.
        LogDamagedError: An entry is damaged or missing.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        raise ConfigurationError("--store is not a usable URL: is a part of it not encoded?") from None
    if pipeline is None and scheme not in _FOLDERS:
        raise ConfigurationError(f"{scheme}:// holds the logs of several pipelines: name one with --pipeline")
    where = ""
    for location in _locations(url, scheme):
        store = open_store(location, pipeline=pipeline or "any", existing=True)
        where = where or store.describe()
        owner = next((entry.pipeline for _, entry in read(store).positions), None)
        if owner is not None and pipeline not in (None, owner):
            raise ConfigurationError(f"the decision log in {where} belongs to {owner!r}, not to {pipeline!r}")
        if owner is not None:
            return Log(owner, open_store(location, pipeline=owner) if writing else store)
    raise NoDecisionLogError(f"{where} has no decision log{f' of {pipeline}' if pipeline else ''}")


def _locations(url: str, scheme: str) -> Iterator[str]:
    """The URL, and what is in it if that is a checkpoint."""
    yield url
    path, mark, query = url.partition("?")
    inside = f"{path.rstrip('/')}/{IN_CHECKPOINT}"
    if scheme in CONDITIONAL_PUT or (scheme in _FOLDERS and Path(unquote(urlsplit(inside).path)).is_dir()):
        yield f"{inside}{mark}{query}"
