"""Where a query's processes run: executors must import what the driver has, and a driver must find its log again."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from onceward.core.errors import ConfigurationError, NoDecisionLogError, StoreError
from onceward.core.log import LogStore, open_store, read
from onceward.core.log.objects import CONDITIONAL_PUT
from onceward.core.log.store import IN_CHECKPOINT
from onceward.core.log.writer import check_owner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("onceward.spark")

DEFAULT: Final = "python3"
"""What Spark runs without PYSPARK_PYTHON."""
ADVICE: Final = f"set PYSPARK_PYTHON={sys.executable} before the session starts"
_PROBE: Final = "import sys, onceward.core, pyarrow; print('.'.join(map(str, sys.version_info[:2])))"


@cache
def obstacle(python: str) -> str:
    """What keeps this interpreter, on this machine, from running onceward's code; empty if nothing does.

    Asked once in a process: it may cost a second.

    Args:
        python: A name on PATH or a path, as in PYSPARK_PYTHON.
    """
    found = shutil.which(python)
    if found is None:
        return f"there is no {python}"
    one, other = Path(found), Path(sys.executable)
    if one.parent == other.parent and one.resolve() == other.resolve():  # `python3` and `python` are links to one file
        return ""
    answer = subprocess.run([found, "-c", _PROBE], capture_output=True, text=True, check=False)  # noqa: S603 - the user's own Python
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        return f"{found} cannot run onceward ({reason})"
    theirs, mine = answer.stdout.strip(), ".".join(map(str, sys.version_info[:2]))
    return "" if theirs == mine else f"{found} is Python {theirs}, and the driver is Python {mine}"


def warn_of_python(spark: SparkSession) -> None:
    """Log a warning if executors on this machine lack the packages: Spark itself says only that something failed."""
    context = spark.sparkContext
    if context.master is None or not context.master.startswith("local"):
        return  # they are elsewhere
    found = obstacle(context.pythonExec)
    if found:
        _log.warning("executors run %s, but %s: %s", context.pythonExec, found, ADVICE)


def open_log(
    store: str | Path | LogStore | None, checkpoint: str, pipeline: str, *, existing: bool = False
) -> LogStore:
    """The store of a pipeline's decision log: the one that is given, or named, or the one inside the checkpoint.

    Args:
        store: What the user gave.
        checkpoint: Root of the checkpoint, as a URL.
        pipeline: Whose log it is.
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


def check_log(store: str | Path | LogStore | None, checkpoint: str, pipeline: str | None, master: str | None) -> None:
    """Refuse a decision log that the first epoch would be refused for; it may be long until new input comes.

    Nothing is written. A store that does not answer now is asked again by the first epoch.

    Args:
        store: What the user gave.
        checkpoint: Root of the checkpoint, as a URL.
        pipeline: Its name; None if it is the query's id, which is not known yet.
        master: Spark's, if known.

    Raises:
        ConfigurationError: It cannot hold a decision log, or is on a local disk.
        EpochConflictError: The log is another pipeline's, or has moved.
        StoreError: The store refuses this client, or the log is damaged.
    """
    try:
        found = open_log(store, checkpoint, pipeline or "any", existing=True)
        check_store(local_store(found), master)
        view = read(found)
    except NoDecisionLogError:
        return
    except StoreError as error:
        if not error.retryable:
            raise
        return
    check_owner(view, pipeline or view.pipeline, found)


def local_path(url: str) -> str | None:
    """The path of a URL without host; None for one of another system. Hadoop writes file:/x, file:///x or /x."""
    if url.startswith("file:"):
        return "/" + url.removeprefix("file:").lstrip("/")
    return None if urlsplit(url).scheme else url


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
