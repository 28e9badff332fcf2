"""Where a Spark pipeline's decision log lives by default, and where it may not."""

from __future__ import annotations

from urllib.parse import urlsplit

from onceward.core.errors import ConfigurationError
from onceward.core.log import LogStore, open_store
from onceward.core.log.objects import CONDITIONAL_PUT
from onceward.core.log.store import IN_CHECKPOINT


def default_store(checkpoint: str, pipeline: str) -> LogStore:
    """The decision log inside a checkpoint folder.

    Raises:
        ConfigurationError: The checkpoint's file system has no put-if-absent.
    """
    scheme = urlsplit(checkpoint).scheme
    if scheme not in ("", "file", *CONDITIONAL_PUT):
        raise ConfigurationError(
            f"the checkpoint is on {scheme}://, which cannot hold a decision log. Say where the log shall live, for "
            "example store='postgresql+psycopg://user@host/db'"
        )
    path = checkpoint.removeprefix("file://") if scheme == "file" else checkpoint
    return open_store(f"{_single_slash(path) if scheme in ('', 'file') else path}/{IN_CHECKPOINT}", pipeline=pipeline)


def _single_slash(path: str) -> str:
    """Hadoop writes file:/x, file:///x or /x for one place."""
    return "/" + path.removeprefix("file:").lstrip("/")


def local_store(store: LogStore) -> str:
    """A store that one machine alone sees, for messages; "" for any other."""
    return "" if store.shared else store.describe()


def check_store(local: str, master: str | None) -> None:
    """Refuse a store on a local disk where the driver may run elsewhere the next time.

    Args:
        local: What `local_store` says of it.
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


def master_of_task() -> str | None:
    """Spark's master, as a running task is told; None outside of one.

    A Python data source's driver-side processes are told nothing of the session (pyspark 4.2): only its tasks can look.
    """
    from pyspark import TaskContext  # noqa: PLC0415 - needs a Spark installation

    context = TaskContext.get()
    return context.getLocalProperty("spark.master") if context is not None else None
