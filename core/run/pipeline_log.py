"""Where a pipeline's decision log lies, and how a driver of a run opens it: the driver itself opens no store.

A Spark query has its log in the checkpoint, or where `store` says. The driver must find it again, whatever machine it
runs on the next time.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..checkpoint import CommitPolicy
from ..errors import ConfigurationError, NoDecisionLogError, OncewardError, StoreError, text_of
from ..log import LogStore, LogView, open_store, read
from ..log.objects import CONDITIONAL_PUT
from ..log.run_writers import register_log
from ..log.store import EXPLAINING, IN_CHECKPOINT
from ..log.writer import check_owner
from .pipeline_run import PipelineRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def open_pipeline_log(
    store: str | Path | LogStore | None, checkpoint: str, pipeline: str, *, existing: bool = False
) -> LogStore:
    """Open the store of a pipeline's decision log: the given or named one, or the one inside the checkpoint.

    Args:
        store: Store of the log, or its URL, as the user gave it; None for the one inside the checkpoint.
        checkpoint: Root of the checkpoint, as a URL.
        pipeline: Name of the pipeline whose log it is.
        existing: Only look: nothing is made.

    Raises:
        NoDecisionLogError: There is none, and `existing` is set.
        ConfigurationError: It cannot hold a decision log.
    """
    if isinstance(store, str | os.PathLike):
        return open_store(os.fspath(store), pipeline=pipeline, existing=existing)
    if store is not None:
        if not hasattr(store, "put_if_absent"):
            raise ConfigurationError(f"store must be a folder, a URL or a LogStore, not {type(store).__name__}")
        return store
    scheme, folder = urlsplit(checkpoint).scheme, local_path(checkpoint)
    if folder is None and scheme not in CONDITIONAL_PUT:
        raise ConfigurationError(
            f"the checkpoint is on {scheme}://, which cannot hold a decision log. Set store=, for "
            "example store='postgresql+psycopg://user@host/db'"
        )
    place = f"{checkpoint if folder is None else folder}/{IN_CHECKPOINT}"
    return open_store(place, pipeline=pipeline, existing=existing)


def local_path(url: str) -> str | None:
    """Return the path of a URL without host (Hadoop writes file:/x, file:///x or /x); None for another system's."""
    if url.startswith("file:"):
        return "/" + url.removeprefix("file:").lstrip("/")
    return None if urlsplit(url).scheme else url


def checked_log(
    store: str | Path | LogStore | None, checkpoint: str, pipeline: str, master: str | None
) -> LogView | None:
    """Refuse a decision log that the first epoch would be refused for; it may be long until new input comes.

    Nothing is written. A store that does not answer now is asked again by the first epoch.

    Args:
        store: Store of the log, or its URL, as the user gave it; None for the one inside the checkpoint.
        checkpoint: Root of the checkpoint, as a URL.
        pipeline: Name of the pipeline.
        master: Spark's, if known.

    Returns:
        What the log says; None if there is none yet, or if its store does not answer.

    Raises:
        ConfigurationError: It cannot hold a decision log, or is on a local disk.
        EpochConflictError: The log is another pipeline's, or has moved.
        StoreError: The store refuses this client, or the log is damaged.
    """
    try:
        log = open_pipeline_log(store, checkpoint, pipeline, existing=True)
        check_store_outlives_driver(local_store(log), master)
        view = read(log)
    except NoDecisionLogError:
        return None
    except StoreError as error:
        if not error.retryable:
            raise
        return None
    check_owner(view, pipeline, log)
    return view


@contextmanager
def noting_failed_start(
    store: str | Path | LogStore | None,
    checkpoint: str | None,
    pipeline: str | None,
    explain: Callable[[BaseException], str] = text_of,
) -> Iterator[None]:
    """Note what is raised beside the pipeline's decision log, if there is one: a start that fails has no coordinator.

    Args:
        store: Store of the log, or its URL, as the user gave it; None for the one inside the checkpoint.
        checkpoint: Root of the checkpoint, as a URL; None if it is not known.
        pipeline: Its name; None if it is the query's id, which is not known yet.
        explain: Function that returns the text of an error for the note.
    """
    try:
        yield
    except Exception as error:
        log = None if EXPLAINING.get() else existing_log(store, checkpoint, pipeline)
        if log is not None:
            register_log(log)
        PipelineRun(pipeline or "", (), CommitPolicy(), lambda: log, explain=explain).note_failed(None, error)
        raise


def existing_log(store: str | Path | LogStore | None, checkpoint: str | None, pipeline: str | None) -> LogStore | None:
    """Open the store of a decision log for notes; None if there is none, or if it cannot be opened."""
    if not (store or checkpoint):
        return None
    try:
        return open_pipeline_log(store, checkpoint or "", pipeline or "any", existing=True)
    except OncewardError:
        return None


def local_store(store: LogStore) -> str:
    """Describe a store that one machine alone sees, for messages; "" for any other."""
    return "" if store.shared else store.describe()


def check_store_outlives_driver(local: str, master: str | None) -> None:
    """Refuse a store on a local disk where the driver may run elsewhere the next time.

    Args:
        local: Description of the store by `local_store`; empty if other machines see it, too.
        master: Spark's, if known.

    Raises:
        ConfigurationError: It is one.
    """
    if not local or master is None or master.startswith("local"):
        return
    raise ConfigurationError(
        f"the decision log in {local} is on a local disk, but the master is {master}: after a failure the "
        "driver may run on another machine and would not find it. Use a database (store='postgresql+psycopg://…'), an "
        "object store, or, if the folder is one that all machines see, store='file:///folder?shared=true'"
    )
