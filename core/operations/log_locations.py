"""Decision logs, by the URLs of their stores or by the checkpoint folders that they are in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..contract.refusals import Refusal, RefusedError
from ..errors import ConfigurationError, NoDecisionLogError
from ..log import open_store, read
from ..log.objects import CONDITIONAL_PUT
from ..log.reader import read_behind_gap
from ..log.store import IN_CHECKPOINT, local_folder, scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..log import LogStore, LogView


@dataclass(frozen=True)
class Log:
    """A pipeline's decision log, in its store."""

    pipeline: str
    store: LogStore

    @property
    def view(self) -> LogView:
        """The log's content, read anew each time."""
        return read(self.store)


def open_log(url: str, pipeline: str | None = None, *, writing: bool = False, repairs: bool = False) -> Log:
    """Find a decision log; nothing is made or changed.

    Args:
        url: URL of the store, as for open_store, or a Spark checkpoint folder.
        pipeline: Name of the pipeline; not needed for a folder, which holds it.
        writing: True if it will be written to: an object store is probed first, as by open_store.
        repairs: True if it may have a gap that is to be repaired: it is then read from the gap on.

    Raises:
        NoDecisionLogError: There is none.
        ConfigurationError: The URL is not usable, or the log is another pipeline's.
        StoreError: The store did not answer.
        LogDamagedError: An entry is damaged or missing.
    """
    try:
        urlsplit(url)
    except ValueError:
        raise ConfigurationError(
            "the address of the store is not a valid URL: are its special characters percent-encoded?"
        ) from None
    if pipeline is None and local_folder(url) is None:
        raise RefusedError(f"{scheme_of(url)}:// holds the logs of several pipelines", Refusal.NEEDS_PIPELINE)
    where = ""
    for location in _locations(url):
        store = open_store(location, pipeline=pipeline or "any", existing=True)
        where = where or store.describe()
        owner = (read_behind_gap if repairs else read)(store).pipeline
        if owner and pipeline not in (None, owner):
            raise ConfigurationError(f"the decision log in {where} belongs to {owner!r}, not to {pipeline!r}")
        if owner:
            return Log(owner, open_store(location, pipeline=owner) if writing else store)
    raise NoDecisionLogError(f"{where} has no decision log{f' of {pipeline}' if pipeline else ''}")


def _locations(url: str) -> Iterator[str]:
    """Yield the URL, and that of the log inside it if it may be a checkpoint."""
    yield url
    path, mark, query = url.partition("?")
    folder, shared = local_folder(url) or (None, False)
    if folder is None and urlsplit(url).scheme in CONDITIONAL_PUT:
        yield f"{path.rstrip('/')}/{IN_CHECKPOINT}{mark}{query}"
    elif folder is not None and (folder / IN_CHECKPOINT).is_dir():
        yield f"{folder / IN_CHECKPOINT}?shared={shared}"
